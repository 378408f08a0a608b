"""Requests to the API of Kubeflow Pipelines (v2beta1): token, time-outs, repeated reads, errors.

Plain HTTP and not kfp's own client: that one sets no time-outs, looks for tokens in a browser and
at metadata servers, and prints; what is needed here is a dozen requests. Their fields are those of
the published API (kfp-server-api 2.17); no live server has been met.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2

from espalier.config import KubeflowConfig
from espalier.records import ClusterError

ENDPOINT_VARIABLE = "KF_PIPELINES_ENDPOINT"
TOKEN_VARIABLE = "KF_PIPELINES_TOKEN"
TOKEN_FILE_VARIABLE = "KF_PIPELINES_SA_TOKEN_PATH"
"""This and the endpoint's are kfp's own names."""

_API = "/apis/v2beta1"
_FIRST_PAUSE_S = 0.5
_PAGE_SIZE = 100
_EXCERPT = 300
"""Characters of a server's own message that an error repeats."""


class KubeflowApi:
    """One command's connection to a server; close it, or use it as a context."""

    def __init__(self, config: KubeflowConfig, environment: Mapping[str, str]) -> None:
        """Read endpoint and token.

        Raises:
            ClusterError: no endpoint, or a token file that cannot be read.
        """
        endpoint = config.endpoint or environment.get(ENDPOINT_VARIABLE)
        if not endpoint:
            raise ClusterError(
                "no Kubeflow to talk to: set kubernetes.kubeflow.endpoint in the profile, or "
                f"{ENDPOINT_VARIABLE}; for a cluster at hand first run "
                "`kubectl -n kubeflow port-forward svc/ml-pipeline 8888`"
            )
        self.endpoint = endpoint.rstrip("/")
        self._attempts = config.attempts
        self._timeout_s = config.timeout_s
        self._http = httpx2.Client(
            base_url=self.endpoint + _API,
            headers=_authorization(config, environment),
            verify=self.endpoint.startswith("https"),  # reading the CA bundle takes 0.3 s
            timeout=config.timeout_s,
        )

    def __enter__(self) -> KubeflowApi:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: str | None) -> dict[str, Any]:
        """Read one object; repeated while the server is away or fails.

        Raises:
            ClusterError: refused, not there, or still failing after `attempts`.
        """
        found = self.get_or_none(path, **query)
        if found is None:
            raise ClusterError(f"{self.endpoint}{_API}{path}: there is no such object")
        return found

    def get_or_none(self, path: str, **query: str | None) -> dict[str, Any] | None:
        """As `get`; None where there is no such object."""
        given = {name: value for name, value in query.items() if value}
        fault = ""
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                answer = self._http.get(path, params=given)
            except httpx2.TransportError as error:
                fault = _named(error)
                continue
            if answer.status_code == 404:
                return None
            if answer.status_code < 500:
                return self._object(path, answer)
            fault = f"HTTP {answer.status_code}: {_message(answer)}"
        raise ClusterError(
            f"{self.endpoint}: no answer to GET {_API}{path} in {self._attempts} attempts of "
            f"{self._timeout_s:g} s each, last {fault}. Look after the server, or correct "
            "kubernetes.kubeflow.endpoint"
        )

    def listed(self, path: str, key: str, **query: str | None) -> Iterator[dict[str, Any]]:
        """Every object of a listing, over all its pages.

        Args:
            path: of the listing.
            key: that its answer holds the objects under.
            query: restricts it.

        Raises:
            ClusterError: see `get`.
        """
        token: str | None = None
        while True:
            page = self.get(path, page_size=str(_PAGE_SIZE), page_token=token, **query)
            found = page.get(key) or []
            if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
                raise ClusterError(
                    f"{self.endpoint}{_API}{path}: {key} is no list of objects; is this the API of "
                    "Kubeflow Pipelines?"
                )
            yield from found
            token = page.get("next_page_token")
            if not token:
                return

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Create or change something; sent once.

        Raises:
            ClusterError: refused, or no answer: then it may have been done all the same.
        """
        return self._object(path, self._sent_once("POST", path, json=body))

    def upload(self, path: str, package: Path, **query: str) -> dict[str, Any]:
        """Send a compiled pipeline; once.

        Raises:
            ClusterError: see `post`.
        """
        files = {"uploadfile": (package.name, package.read_bytes(), "application/x-yaml")}
        return self._object(path, self._sent_once("POST", path, files=files, params=query))

    def delete(self, path: str) -> None:
        """Delete one object; sent once.

        Raises:
            ClusterError: see `post`.
        """
        self._object(path, self._sent_once("DELETE", path))

    def _sent_once(self, method: str, path: str, **content: Any) -> httpx2.Response:  # noqa: ANN401 (as httpx declares it)
        try:
            return self._http.request(method, path, **content)
        except httpx2.TransportError as error:
            raise ClusterError(
                f"{self.endpoint}: no answer to {method} {_API}{path} within "
                f"{self._timeout_s:g} s ({_named(error)}). It may have been done all the same: "
                "look (`espalier schedule list`, Kubeflow's pages) before you send it again"
            ) from error

    def _object(self, path: str, answer: httpx2.Response) -> dict[str, Any]:
        where = f"{self.endpoint}{_API}{path}"
        if answer.status_code in (401, 403):
            raise ClusterError(
                f"{where}: the server refuses the token (HTTP {answer.status_code}: "
                f"{_message(answer)}). Give a valid one in kubernetes.kubeflow.token_file, "
                f"{TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}, with rights in the namespace"
            )
        if answer.is_redirect:
            raise ClusterError(
                f"{where}: the server sends elsewhere, as to a login page. Give a token in "
                "kubernetes.kubeflow.token_file, or the API's own address"
            )
        if not answer.is_success:
            raise ClusterError(f"{where}: HTTP {answer.status_code}: {_message(answer)}")
        try:
            found = answer.json()
        except ValueError as error:
            raise ClusterError(
                f"{where}: the answer is not JSON; is this the API of Kubeflow Pipelines?"
            ) from error
        if not isinstance(found, dict):
            raise ClusterError(f"{where}: the answer is no JSON object")
        return found


def _authorization(config: KubeflowConfig, environment: Mapping[str, str]) -> dict[str, str]:
    named = environment.get(TOKEN_FILE_VARIABLE)
    path = config.token_file or (Path(named) if named else None)
    token = environment.get(TOKEN_VARIABLE)
    if config.token_file is not None or (path is not None and not token):
        assert path is not None, "one of the two names a file"
        try:
            token = path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ClusterError(
                f"{path}: Kubeflow's token cannot be read ({error.strerror})"
            ) from error
    return {"Authorization": f"Bearer {token}"} if token else {}


def _message(answer: httpx2.Response) -> str:
    """What the server says: the message of Google's RPC status, or the beginning of the text."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    said = body.get("message") or body.get("error") if isinstance(body, dict) else answer.text
    return str(said)[:_EXCERPT]


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

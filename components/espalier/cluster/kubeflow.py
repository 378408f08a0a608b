"""Kubeflow Pipelines: the connection, and starting a run of a compiled pipeline.

    with KubeflowApi(profile.kubernetes.kubeflow, os.environ) as api:
        run_id = start_run(api, "r17", compile_to)

Requests use kfp_server_api, the generated client of v2beta1, and two older paths which it lacks.
Answers are parsed as JSON here, because the client's models accept a web page as an empty listing.
This module adds time-outs, retries of reads and error messages. kfp's own client has no time-outs,
searches for tokens in a browser and at metadata servers, and prints.

Comments about the server name a file of kubeflow/pipelines 2.17, relative to backend/src/apiserver
unless they say otherwise.
"""

from __future__ import annotations

import json
import re
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import kfp_server_api
import tenacity
import urllib3
from kfp_server_api import ApiException
from pydantic import BaseModel, ValidationError

from espalier.config import KubeflowConfig
from espalier.records import ClusterError, file_digest

ENDPOINT_VARIABLE = "KF_PIPELINES_ENDPOINT"
UI_VARIABLE = "KF_PIPELINES_UI_ENDPOINT"
TOKEN_VARIABLE = "KF_PIPELINES_TOKEN"
TOKEN_FILE_VARIABLE = "KF_PIPELINES_SA_TOKEN_PATH"
"""The variables of endpoint, UI and token file have the names that kfp uses."""
ACTIVE_STATES = frozenset({"PENDING", "RUNNING", "CANCELING", "PAUSED"})
"""States of a run or step before its end (model/run.go)."""

AnswerT = TypeVar("AnswerT", bound=BaseModel)

Compile = Callable[[Path], Mapping[str, str | int | float]]
"""Writes the compiled pipeline to a path and returns the parameters of the run."""

_FIRST_PAUSE_S = 0.5
_PAGE_SIZE = 100
_EXCERPT_START, _EXCERPT_END = 200, 400
"""First and last characters of a long message of the server that an error quotes. The server puts
the failed action before its cause ("Failed to a: Failed to b: cause",
backend/src/common/util/error.go), so the cause is at the end."""
_STACK_FRAME = re.compile(r"\t|[\w./*()-]+\.[\w.*()-]+$")
"""A line of a Go stack trace; the server puts these into messages of unexpected errors."""
_NO_NAMESPACE = re.compile(
    r"empty namespace|Namespace cannot be empty|Namespace is required|in multi-user mode"
)
"""Errors of a multi-user server about a missing namespace (server/*_server.go,
resource/resource_manager.go, validation/namespace.go)."""
_DIGEST_CHARS = 12


class KubeflowAwayError(ClusterError):
    """The server did not answer, or failed, at every attempt; a later attempt may succeed."""


class KubeflowApi:
    """Connection to a server of Kubeflow Pipelines; a context manager.

    Attributes:
        endpoint: URL of the server.
        config: `kubernetes.kubeflow` of the profile.
        pipelines, uploads, experiments, runs, recurring_runs: methods of kfp_server_api, for
            `read`, `listed` and `write`.
    """

    def __init__(self, config: KubeflowConfig, environment: Mapping[str, str]) -> None:
        """Read endpoint and token.

        Raises:
            ClusterError: there is no endpoint, or the token file cannot be read.
        """
        endpoint = config.endpoint or environment.get(ENDPOINT_VARIABLE)
        if not endpoint:
            raise ClusterError(
                "no Kubeflow endpoint: set kubernetes.kubeflow.endpoint in the profile, or "
                f"{ENDPOINT_VARIABLE}; for a cluster at hand first run "
                "`kubectl -n kubeflow port-forward svc/ml-pipeline 8888`"
            )
        self.endpoint = endpoint.rstrip("/")
        self.config = config
        self._ui = config.ui or environment.get(UI_VARIABLE)
        self._serves_ui: bool | None = None
        self._client = client = kfp_server_api.ApiClient(
            _settings(self.endpoint, config, environment)
        )
        self._connections: urllib3.PoolManager = client.rest_client.pool_manager
        self.pipelines = kfp_server_api.PipelineServiceApi(client)
        self.uploads = kfp_server_api.PipelineUploadServiceApi(client)
        self.experiments = kfp_server_api.ExperimentServiceApi(client)
        self.runs = kfp_server_api.RunServiceApi(client)
        self.recurring_runs = kfp_server_api.RecurringRunServiceApi(client)

    def __enter__(self) -> KubeflowApi:
        return self

    def __exit__(self, *_: object) -> None:
        self._connections.clear()

    def read(
        self, purpose: str, request: Callable[..., Any], *arguments: str, **query: object
    ) -> dict[str, Any] | None:
        """Read one object, with retries while the server is unreachable; None for HTTP 404.

        Args:
            purpose: action for messages, such as "list schedules".
            request: a method of `pipelines`, `experiments`, `runs` or `recurring_runs`.
            arguments: positional arguments of the method.
            query: keyword arguments of the method; those that are None are left out.

        Raises:
            KubeflowAwayError: the server failed `config.attempts` times.
            ClusterError: the server refuses.
        """
        repeating = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_transient),
            stop=tenacity.stop_after_attempt(self.config.attempts),
            wait=tenacity.wait_exponential(multiplier=_FIRST_PAUSE_S),
            reraise=True,
        )
        try:
            content = repeating(self._content, request, *arguments, **query)
        except (ApiException, urllib3.exceptions.HTTPError) as error:
            if _is_transient(error):
                raise KubeflowAwayError(
                    f"{self.endpoint}: could not {purpose} in {self.config.attempts} attempts of "
                    f"{self.config.timeout_s:g} s each, last {_fault(error)}. Check the "
                    "server, or correct kubernetes.kubeflow.endpoint"
                ) from error
            if isinstance(error, ApiException) and error.status == 404:
                return None
            raise self._refusal(purpose, error) from error
        return self._object(purpose, content)

    def listed(
        self, purpose: str, key: str, request: Callable[..., Any], *arguments: str, **query: object
    ) -> Iterator[dict[str, Any]]:
        """All objects of a listing, page by page.

        Args:
            purpose: action for messages.
            key: key of the objects in a page.
            request: a method, as for `read`.
            arguments: positional arguments of the method.
            query: keyword arguments of the method; `page_size` is 100 by default.

        Raises:
            ClusterError: as for `read`; or the listing does not exist.
        """
        token: str | None = None
        query = {"page_size": _PAGE_SIZE, **query}
        while True:
            page = self.read(purpose, request, *arguments, page_token=token, **query)
            if page is None:
                raise ClusterError(f"{self.endpoint}: could not {purpose}: there is no such object")
            found = page.get(key) or []
            if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
                raise ClusterError(
                    f"{self.endpoint}: could not {purpose}: {key} is not a list of objects; is "
                    "this the API of Kubeflow Pipelines?"
                )
            yield from found
            token = page.get("next_page_token")
            if not token:
                return

    def write(
        self, purpose: str, request: Callable[..., Any], *arguments: object, **query: object
    ) -> dict[str, Any]:
        """Create, change or delete something, without retries; arguments as for `read`.

        Raises:
            ClusterError: the server refuses, or does not answer; in that case it may have acted.
        """
        try:
            content = self._content(request, *arguments, **query)
        except ApiException as error:
            raise self._refusal(purpose, error) from error
        except urllib3.exceptions.HTTPError as error:
            raise ClusterError(
                f"{self.endpoint}: could not {purpose}: no answer within "
                f"{self.config.timeout_s:g} s ({_fault(error)}). It may have been done: "
                "check (`espalier runs list`, `espalier schedule list`) before you send it again"
            ) from error
        return self._object(purpose, content)

    def get(self, path: str, **options: object) -> Any:  # noqa: ANN401 (as the client's methods)
        """GET a path without a method of the generated client; usable as a request of `read`."""
        query = {key: value for key, value in options.items() if not key.startswith("_")}
        settings: dict[str, Any] = {key: options[key] for key in options.keys() - query.keys()}
        return self._client.call_api(
            path,
            "GET",
            query_params=list(query.items()),
            header_params={"Accept": "*/*"},
            auth_settings=["Bearer"],
            _return_http_data_only=True,
            **settings,
        )

    def text(self, path: str, **query: object) -> Iterator[str] | None:
        """Lines of a streamed text; None if the server has no such path, or answers with HTML.

        Raises:
            ClusterError: the server refuses, or the connection breaks.
        """
        timeout = (self.config.timeout_s, self.config.timeout_s)
        try:
            response = self.get(path, **query, _preload_content=False, _request_timeout=timeout)
        except ApiException as error:
            if error.status == 404:
                return None
            raise self._refusal(f"read {path}", error) from error
        except urllib3.exceptions.HTTPError as error:
            raise KubeflowAwayError(
                f"{self.endpoint}: could not read {path}: {_fault(error)}"
            ) from error
        if response.headers.get("Content-Type", "").startswith("text/html"):
            response.drain_conn()
            return None
        return self._lines(response, path)

    def _lines(self, response: urllib3.BaseHTTPResponse, path: str) -> Iterator[str]:
        try:
            kept = b""
            for chunk in response.stream():
                *lines, kept = (kept + chunk).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
            if kept:
                yield kept.decode(errors="replace")
        except urllib3.exceptions.HTTPError as error:
            raise KubeflowAwayError(
                f"{self.endpoint}: broken off while reading {path}: {_fault(error)}"
            ) from error

    def serves_ui(self) -> bool:
        """Whether the endpoint is Kubeflow's UI server, which forwards requests to the API.

        The UI server answers / with a page (frontend/server/app.ts, indexHtmlHandler); the API
        server, which a port-forward of ml-pipeline reaches, does not (main.go, buildHTTPRouter).
        False where the server does not answer.
        """
        if self._serves_ui is None:
            self._serves_ui = self._has_pages()
        return self._serves_ui

    def _has_pages(self) -> bool:
        timeout = (self.config.timeout_s, self.config.timeout_s)
        try:
            response = self.get("/", _preload_content=False, _request_timeout=timeout)
        except (ApiException, UnicodeDecodeError, urllib3.exceptions.HTTPError):
            return False
        response.drain_conn()
        return response.headers.get("Content-Type", "").startswith("text/html")

    def run_page(self, run_id: str) -> str | None:
        """URL of a run's page in Kubeflow's UI; None where the UI's address is unknown."""
        address = self._ui or (self.endpoint if self.serves_ui() else None)
        return f"{address.rstrip('/')}/#/runs/details/{run_id}" if address else None

    def _content(self, request: Callable[..., Any], *arguments: object, **query: object) -> bytes:
        timeout_s = self.config.timeout_s
        try:
            response = request(
                *arguments,
                **{name: value for name, value in query.items() if value is not None},
                _preload_content=False,
                _request_timeout=(timeout_s, timeout_s),  # the client ignores a single float
            )
        except UnicodeDecodeError as error:  # the client decodes error bodies
            raise ClusterError(
                f"{self.endpoint}: an error that is not text; is this the API of Kubeflow "
                "Pipelines?"
            ) from error
        return response.data

    def _object(self, purpose: str, content: bytes) -> dict[str, Any]:
        try:
            found = json.loads(content)
        except ValueError as error:
            raise ClusterError(
                f"{self.endpoint}: could not {purpose}: the answer is not JSON; is this the API of "
                "Kubeflow Pipelines?"
            ) from error
        if not isinstance(found, dict):
            raise ClusterError(
                f"{self.endpoint}: could not {purpose}: the answer is not a JSON object"
            )
        return found

    def _refusal(self, purpose: str, error: Exception) -> ClusterError:
        status = error.status if isinstance(error, ApiException) else None
        fault = f"{self.endpoint}: could not {purpose}: "
        if status in (401, 403):
            fault += (
                f"the server refuses the token ({_fault(error)}). Give a valid one in "
                f"kubernetes.kubeflow.token_file, {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}, with "
                "rights in the namespace"
            )
        elif status is not None and 300 <= status < 400:
            fault += (
                "the server redirects, probably to a login page. Give a token in "
                "kubernetes.kubeflow.token_file, or the API's own address"
            )
        elif (
            status == 400 and self.config.namespace is None and _NO_NAMESPACE.search(_fault(error))
        ):
            fault += (
                "this Kubeflow is multi-user and keeps runs and schedules by namespace. Set "
                "kubernetes.kubeflow.namespace to yours, in the profile or with --set "
                f"({_fault(error)})"
            )
        else:
            fault += _fault(error)
        return ClusterError(fault)


def parsed_answer(model: type[AnswerT], answer: object, what: str) -> AnswerT:
    """Validate an answer of the server.

    Args:
        model: the fields that are needed.
        answer: parsed JSON.
        what: name of the object for the message, such as "a run".

    Raises:
        ClusterError: a field is missing or invalid.
    """
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ClusterError(
            f"the server sends {what} that cannot be read ({where}: {first['msg']}): does it speak "
            "v2beta1 of Kubeflow Pipelines?"
        ) from error


def start_run(api: KubeflowApi, name: str, compile_to: Compile) -> str:
    """Start one run and return its id.

    Args:
        api: connection to the server.
        name: display name of the run.
        compile_to: writes the compiled pipeline.

    Raises:
        ProfileError: the profile or an override is invalid.
        ClusterError: the server is unreachable, or refuses.
    """
    run = kfp_server_api.V2beta1Run(display_name=name, **run_fields(api, compile_to))
    return _id(api.write("start the run", api.runs.run_service_create_run, run), "run_id")


def run_fields(api: KubeflowApi, compile_to: Compile) -> dict[str, Any]:
    """Fields that V2beta1Run and V2beta1RecurringRun share, except the name.

    A pipeline version is named after the digest of the compiled file: equal pipelines are uploaded
    once, and a repeated command finds the version of its first attempt. A missing pipeline or
    experiment is created.

    Raises:
        ProfileError: the profile or an override is invalid.
        ClusterError: the server is unreachable or refuses, or the experiment is archived.
    """
    # first, because a multi-user server refuses experiments without a namespace, but not pipelines
    experiment_id = _experiment(api)
    with tempfile.TemporaryDirectory(prefix="espalier-") as folder:
        package = Path(folder) / "pipeline.yaml"
        parameters = compile_to(package)
        pipeline_id = _pipeline(api)
        version_id = _version(api, pipeline_id, package)
    if not experiment_id:
        name = api.config.experiment
        experiment = kfp_server_api.V2beta1Experiment(
            display_name=name, namespace=api.config.namespace
        )
        creating = api.experiments.experiment_service_create_experiment
        created = api.write(f"create the experiment {name}", creating, experiment)
        experiment_id = _id(created, "experiment_id")
    return {
        "experiment_id": experiment_id,
        "pipeline_version_reference": kfp_server_api.V2beta1PipelineVersionReference(
            pipeline_id=pipeline_id, pipeline_version_id=version_id
        ),
        "runtime_config": kfp_server_api.V2beta1RuntimeConfig(parameters=dict(parameters)),
        "service_account": api.config.service_account or None,
    }


def _pipeline(api: KubeflowApi) -> str:
    name, namespace = api.config.pipeline, api.config.namespace
    by_name = api.pipelines.pipeline_service_get_pipeline_by_name
    found = api.read(f"read the pipeline {name}", by_name, name, namespace=namespace)
    if found is None:
        pipeline = kfp_server_api.V2beta1Pipeline(name=name, display_name=name, namespace=namespace)
        creating = api.pipelines.pipeline_service_create_pipeline
        found = api.write(f"create the pipeline {name}", creating, pipeline)
    return _id(found, "pipeline_id")


def _version(api: KubeflowApi, pipeline_id: str, package: Path) -> str:
    name = f"{api.config.pipeline}-{file_digest(package)[:_DIGEST_CHARS]}"
    versions = api.pipelines.pipeline_service_list_pipeline_versions
    purpose = f"list versions of the pipeline {api.config.pipeline}"
    for version in api.listed(purpose, "pipeline_versions", versions, pipeline_id):
        if name in (version.get("name"), version.get("display_name")):
            return _id(version, "pipeline_version_id")
    uploaded = api.write(
        f"upload {name}", api.uploads.upload_pipeline_version, str(package),
        name=name, pipelineid=pipeline_id,
    )  # fmt: skip
    return _id(uploaded, "pipeline_version_id")


def _experiment(api: KubeflowApi) -> str | None:
    """Id of the profile's experiment; None if it does not exist.

    Raises:
        ClusterError: it is archived. The server would accept the run (server/run_server.go,
            createRun), but the UI would not list it among active experiments.
    """
    name, namespace = api.config.experiment, api.config.namespace
    listing = api.experiments.experiment_service_list_experiments
    for found in api.listed("list experiments", "experiments", listing, namespace=namespace):
        if found.get("display_name") == name:
            if found.get("storage_state") == "ARCHIVED":
                raise ClusterError(
                    f"{api.endpoint}: the experiment {name} is archived. Restore it on Kubeflow's "
                    "pages (Experiments, Archived), or name another one in "
                    "kubernetes.kubeflow.experiment"
                )
            return _id(found, "experiment_id")
    return None


def _id(found: dict[str, Any], key: str) -> str:
    value = found.get(key)
    if not isinstance(value, str) or not value:
        raise ClusterError(
            f"the server's answer has no {key}: does it speak v2beta1 of Kubeflow Pipelines?"
        )
    return value


def _settings(
    endpoint: str, config: KubeflowConfig, environment: Mapping[str, str]
) -> kfp_server_api.Configuration:
    settings: Any = kfp_server_api.Configuration(host=endpoint)  # its attributes are typed as None
    # no retry and no redirect; without a Retry object urllib3 raises TLS errors unwrapped
    settings.retries = urllib3.Retry(total=0, raise_on_redirect=False)
    settings.ssl_ca_cert = environment.get("SSL_CERT_FILE")
    address = urlsplit(endpoint)
    if address.hostname and not urllib.request.proxy_bypass(address.hostname):
        settings.proxy = urllib.request.getproxies().get(address.scheme)
    if token := _token(config, environment):
        settings.api_key = {"authorization": token}
        settings.api_key_prefix = {"authorization": "Bearer"}
        # read before every request: the kubelet writes a new token into the file every hour
        settings.refresh_api_key_hook = lambda anew: anew.api_key.update(
            authorization=_token(config, environment)
        )
    return settings


def _token(config: KubeflowConfig, environment: Mapping[str, str]) -> str | None:
    token = environment.get(TOKEN_VARIABLE)
    path = config.token_file
    if path is None and not token and (named := environment.get(TOKEN_FILE_VARIABLE)):
        path = Path(named)
    if path is None:
        return token
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ClusterError(f"{path}: Kubeflow's token cannot be read ({error.strerror})") from error


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, ApiException):
        return (error.status or 0) >= 500
    return isinstance(error, urllib3.exceptions.HTTPError)


def _fault(error: Exception) -> str:
    """Text of an error with the server's message, which is shortened in the middle if long."""
    if isinstance(error, ApiException):
        try:
            body = json.loads(error.body or "")
        except ValueError:
            body = None
        said = body.get("message") or body.get("error") if isinstance(body, dict) else error.body
        lines = str(said or "").splitlines()
        text = " ".join(line for line in lines if line and not _STACK_FRAME.match(line))
        if len(text) > _EXCERPT_START + _EXCERPT_END:
            text = f"{text[:_EXCERPT_START]} ... {text[-_EXCERPT_END:]}"
        return f"HTTP {error.status}: {text}"
    if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason is not None:
        error = error.reason
    return f"{type(error).__name__}: {error}"

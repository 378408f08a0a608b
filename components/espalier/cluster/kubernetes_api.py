"""Client of the Kubernetes API: requests, retries and errors, blocking or asynchronous.

    api = KubernetesApi(cluster_configuration(kubeconfig), ApiRetries(attempts=4))
    pods = api.send(read(object_path("v1", "pods", namespace), labelSelector="app=one"))["items"]

Objects are dictionaries with the API's own keys. The kubernetes package reads kubeconfig files,
runs their plugins and renews service-account tokens. Requests use httpx2, because the kubernetes
package has no asynchronous client: each of a pool's thousands of sandboxes would need a thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import tenacity

from espalier.cluster.objects.names import K8sObject
from espalier.records import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """A request, made by the functions below and sent by either client.

    Attributes:
        purpose: action for messages, after "could not": "read the Deployment espalier-serving".
    """

    method: str
    path: str
    purpose: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: K8sObject | None = None
    content_type: str = "application/json"


def object_path(api_version: str, plural: str, namespace: str, name: str = "") -> str:
    """Path of an object, or of all objects of its kind if no name is given.

    object_path("ray.io/v1", "rayjobs", "one", "r17") is /apis/ray.io/v1/namespaces/one/rayjobs/r17.
    """
    root = "/api/v1" if api_version == "v1" else f"/apis/{api_version}"
    return f"{root}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def read(path: str, purpose: str = "", **query: str) -> ApiRequest:
    """Request for an object, or for a list, which `labelSelector` in `query` can restrict."""
    return ApiRequest(method="GET", path=path, purpose=purpose or f"read {path}", query=query)


def create(folder: str, manifest: K8sObject, purpose: str = "") -> ApiRequest:
    """Request that creates an object; `folder` is the path of its kind."""
    purpose = purpose or f"create {manifest['metadata']['name']} in {folder}"
    return ApiRequest(method="POST", path=folder, purpose=purpose, body=manifest)


def delete(path: str, purpose: str = "", **preconditions: str) -> ApiRequest:
    """Request that deletes an object and everything that it owns.

    Args:
        path: path of the object.
        purpose: action for messages.
        preconditions: `uid` or `resourceVersion` that the object must have; otherwise HTTP 409.
    """
    options: K8sObject = {"propagationPolicy": "Background"}
    if preconditions:
        options["preconditions"] = preconditions
    return ApiRequest(method="DELETE", path=path, purpose=purpose or f"delete {path}", body=options)


def delete_last(path: str, purpose: str = "") -> ApiRequest:
    """Request that deletes an object after everything that it owns: once it is gone, all is."""
    options: K8sObject = {"propagationPolicy": "Foreground"}
    return ApiRequest(method="DELETE", path=path, purpose=purpose or f"delete {path}", body=options)


def merge(path: str, fields: K8sObject, purpose: str = "", **query: str) -> ApiRequest:
    """Request that merge-patches fields; HTTP 409 if a `resourceVersion` among them is outdated."""
    return ApiRequest(
        method="PATCH", path=path, purpose=purpose or f"change {path}", query=query, body=fields,
        content_type="application/merge-patch+json",
    )  # fmt: skip


def apply(path: str, fields: K8sObject, *, manager: str, purpose: str = "") -> ApiRequest:
    """Request that sets and owns fields by server-side apply, forced over other managers."""
    return ApiRequest(
        method="PATCH", path=path, purpose=purpose or f"apply {path}", body=fields,
        query={"fieldManager": manager, "force": "true"},
        content_type="application/apply-patch+yaml",
    )  # fmt: skip


def owner_uid(manifest: K8sObject) -> str:
    """UID of the first owner; "" if there is none."""
    references = manifest["metadata"].get("ownerReferences") or [{}]
    return str(references[0].get("uid", ""))


if TYPE_CHECKING:
    from kubernetes.client import Configuration

NOT_FOUND, CONFLICT, TOO_MANY_REQUESTS = 404, 409, 429
_CONNECTIONS = 32
_EXCERPT = 300
"""First characters of an answer without a Status object that an error quotes."""
_LONGEST_LINE_BYTES = 16 * 2**20
"""Longest line of a watch, in bytes; etcd's limit for an object is 1.5 MiB, more as JSON."""
_LONGEST_ASKED_S = 60.0
"""Longest pause in seconds that a server can ask for (Retry-After)."""
_TOKEN_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 35_000}
"""Linux's socket options; other systems have some of them. A peer that acknowledges nothing for
35 s counts as gone, on idle connections, too."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRetries:
    """Retries while the API server is unreachable or fails; the pause doubles each time.

    Each pause is shortened by up to half at random, so that clients that failed together do not
    retry together. A server's Retry-After is obeyed, up to a minute. Retries end after `attempts`,
    or when the next attempt would start more than `total_s` after the first.
    """

    attempts: int | None = 1
    """Most attempts; None: unlimited within `total_s`."""
    total_s: float = float("inf")
    first_pause_s: float = 0.25
    longest_pause_s: float = 15.0
    timeout_s: float = 30.0
    """Time limit of one attempt, seconds."""
    also: frozenset[int] = frozenset()
    """Statuses to retry besides those of `ApiError.is_transient`."""
    jitter: Callable[[], float] = random.random
    """Random number from 0 (the shortest pause) to 1."""

    def pause_s(self, failures: int, error: BaseException | None) -> float:
        """Seconds to wait after `failures` consecutive failures, the last with `error`."""
        # from 2**16 on every pause is the longest, and 2.0**failures would overflow at some point
        doubled = self.first_pause_s * 2 ** min(failures - 1, 16)
        pause = min(self.longest_pause_s, doubled) * (0.5 + self.jitter() / 2)
        asked = error.retry_after_s if isinstance(error, ApiError) else 0.0
        return max(pause, min(asked, _LONGEST_ASKED_S))


class ApiError(ClusterError):
    """The API server refused a request, or did not answer it.

    Attributes:
        status: HTTP status; 0 if there was no answer.
        is_transient: whether the same request may succeed later.
        retry_after_s: the server's Retry-After in seconds; 0 if it sends none.
    """

    def __init__(self, message: str, *, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.is_transient = status in (0, TOO_MANY_REQUESTS) or status >= 500
        self.retry_after_s = retry_after_s


class KubernetesApi:
    """Blocking requests to one cluster."""

    def __init__(self, settings: Configuration, retries: ApiRetries) -> None:
        self._settings = settings
        self._retries = retries
        self._http = httpx2.Client(
            base_url=settings.host,
            timeout=retries.timeout_s,
            transport=httpx2.HTTPTransport(
                verify=_verification(settings), trust_env=False, socket_options=keepalive_options()
            ),
        )

    def send(self, request: ApiRequest) -> K8sObject:
        """Send a request, with the retries of `retries`.

        Raises:
            ApiError: refused, or not answered.
        """
        return tenacity.Retrying(**_repeating(self._retries))(self._send_once, request)

    def find(self, path: str, purpose: str = "") -> K8sObject | None:
        """Read the object at a path; None if there is none.

        Raises:
            ApiError: refused, or not answered.
        """
        try:
            return self.send(read(path, purpose))
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return None

    def create_or_adopt(self, folder: str, manifest: K8sObject, kind: str) -> K8sObject:
        """Create an object, or return the existing one of the same owner.

        This makes a create repeatable: if only its answer was lost, the created object is adopted.

        Args:
            folder: path of the kind.
            manifest: object with an entry in `metadata.ownerReferences`.
            kind: name of the kind for messages.

        Raises:
            ClusterError: an object of this name has another owner; refused; not answered.
        """
        name = manifest["metadata"]["name"]
        try:
            return self.send(create(folder, manifest, f"create {kind} {name}"))
        except ApiError as error:
            if error.status != CONFLICT:
                raise
        present = self.find(f"{folder}/{name}", f"read {kind} {name}")
        if present is None or owner_uid(present) != owner_uid(manifest):
            namespace = manifest["metadata"]["namespace"]
            raise ClusterError(
                f"there is a {kind} {namespace}/{name} of another owner; delete it, or give the "
                "run another id"
            )
        return present

    def discard(self, request: ApiRequest) -> bool:
        """Send a `delete`; False if the object does not exist or its preconditions do not hold.

        Raises:
            ApiError: refused, or not answered.
        """
        try:
            self.send(request)
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
            return False
        return True

    def _send_once(self, request: ApiRequest) -> K8sObject:
        try:
            response = self._http.request(**_http_arguments(request, self._settings))
        except httpx2.RequestError as error:
            raise _no_answer(request, error) from error
        return _answer(request, response)


class AsyncKubernetesApi:
    """Asynchronous requests to one cluster.

    Attributes:
        sent: number of requests sent, by method; a watch is a GET.
    """

    def __init__(self, settings: Configuration, retries: ApiRetries) -> None:
        self.sent: Counter[str] = Counter()
        self._settings = settings
        self._retries = retries
        self._http = httpx2.AsyncClient(
            base_url=settings.host,
            timeout=None,  # `send_once` limits an attempt; a watch has no limit
            transport=httpx2.AsyncHTTPTransport(
                verify=_verification(settings),
                trust_env=False,
                limits=httpx2.Limits(max_connections=_CONNECTIONS, keepalive_expiry=30.0),
                socket_options=keepalive_options(),
            ),
        )

    async def send(self, request: ApiRequest) -> K8sObject:
        """Send a request, with the retries of `retries`; a create is sent once.

        Raises:
            ApiError: refused, or not answered.
        """
        if request.method == "POST":
            return await self.send_once(request)
        return await tenacity.AsyncRetrying(**_repeating(self._retries))(self.send_once, request)

    async def lines(self, request: ApiRequest) -> AsyncGenerator[bytes]:
        """Lines of a streamed answer, such as a watch's, until the server ends it.

        There is no time limit: the caller has to notice a silent connection.

        Raises:
            ApiError: refused, the connection broke, or a line is too long.
        """
        self.sent[request.method] += 1
        try:
            async with self._http.stream(**_http_arguments(request, self._settings)) as response:
                if not response.is_success:
                    await response.aread()
                    _answer(request, response)
                async for line in _lines(request, response):
                    yield line
        except httpx2.RequestError as error:
            raise _no_answer(request, error) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send_once(self, request: ApiRequest) -> K8sObject:
        """Send a request once.

        Raises:
            ApiError: refused, or not answered.
        """
        self.sent[request.method] += 1
        try:
            async with asyncio.timeout(self._retries.timeout_s):
                response = await self._http.request(**_http_arguments(request, self._settings))
        except (httpx2.RequestError, TimeoutError) as error:
            raise _no_answer(request, error) from error
        return _answer(request, response)


def cluster_configuration(kubeconfig: str | Path | None) -> Configuration:
    """Address and credentials of a cluster.

    Args:
        kubeconfig: one or several files, separated by colons; None or "" means the cluster of this
            pod.

    Raises:
        ClusterError: there is no usable configuration.
    """
    from kubernetes import client, config

    settings = client.Configuration()
    try:
        if kubeconfig:
            path = str(Path(kubeconfig).expanduser())
            config.load_kube_config(path, client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)
    except config.ConfigException as error:
        if not kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
            raise ClusterError(_without_token(error)) from error
        raise ClusterError(
            f"no cluster configured: {error}. Run in a pod, set KUBECONFIG, or name a kubeconfig"
        ) from error
    return settings


def _without_token(error: Exception) -> str:
    return (
        f"no service-account token in this pod: {_TOKEN_FILE} cannot be used ({error}). Every pod "
        "knows the API server's address, but only one that mounts a token can use it: give the pod "
        "an account with the rights that it needs (espalier-trainer for sandboxes, "
        "espalier-training-launcher for RayJobs and TrainJobs) and "
        "automountServiceAccountToken: true, or name a kubeconfig. Under Kubeflow set "
        "kubernetes.kubeflow.service_account (k8s/README.md)"
    )


def keepalive_options() -> list[tuple[int, int, int]]:
    """Socket options with which the kernel detects a peer that vanished."""
    known = {name: getattr(socket, name, None) for name in _KEEPALIVE}
    return [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *(
            (socket.IPPROTO_TCP, option, _KEEPALIVE[name])
            for name, option in known.items()
            if option is not None
        ),
    ]


def _http_arguments(request: ApiRequest, settings: Configuration) -> dict[str, Any]:
    headers = {"Accept": "application/json"}
    if "authorization" in settings.api_key:  # read on every request: the token is renewed
        headers["Authorization"] = str(settings.get_api_key_with_prefix("authorization"))
    content = None
    if request.body is not None:
        headers["Content-Type"] = request.content_type
        content = json.dumps(request.body).encode()
    name: str | None = getattr(settings, "tls_server_name", None)
    return {
        "method": request.method,
        "url": request.path,
        "params": dict(request.query),
        "content": content,
        "headers": headers,
        "extensions": {"sni_hostname": name} if name else {},
    }


def _verification(settings: Configuration) -> ssl.SSLContext | bool:
    if not settings.host.startswith("https"):
        return False  # reading the CA bundle takes 0.3 s
    trusted = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if not settings.verify_ssl:
        trusted.check_hostname = False
        trusted.verify_mode = ssl.CERT_NONE
    if settings.cert_file:
        trusted.load_cert_chain(settings.cert_file, settings.key_file)
    return trusted


def _repeating(retries: ApiRetries) -> dict[str, Any]:

    def is_repeated(error: BaseException) -> bool:
        return isinstance(error, ApiError) and (error.is_transient or error.status in retries.also)

    def wait(state: tenacity.RetryCallState) -> float:
        return retries.pause_s(
            state.attempt_number, state.outcome.exception() if state.outcome else None
        )

    stop = tenacity.stop_before_delay(retries.total_s)
    if retries.attempts is not None:
        stop = tenacity.stop_any(stop, tenacity.stop_after_attempt(retries.attempts))
    return {
        "retry": tenacity.retry_if_exception(is_repeated),
        "stop": stop,
        "wait": wait,
        "before_sleep": _log_pause,
        "retry_error_callback": _give_up,
    }


def _log_pause(state: tenacity.RetryCallState) -> None:
    assert state.outcome is not None, "a pause follows an attempt"
    _log.warning("%s; next attempt in %.2g s", state.outcome.exception(), state.upcoming_sleep)


def _give_up(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, ApiError), "only ApiError is retried"
    if state.attempt_number == 1:
        raise error
    took_s = state.seconds_since_start or 0.0
    raise ApiError(
        f"{error}; given up after {state.attempt_number} attempts in {took_s:.0f} s",
        status=error.status,
        retry_after_s=error.retry_after_s,
    ) from error


def _no_answer(request: ApiRequest, error: Exception) -> ApiError:
    said = f"{type(error).__name__} {error}".strip()
    return ApiError(f"could not {request.purpose}: the API server does not answer ({said})")


def _answer(request: ApiRequest, response: httpx2.Response) -> K8sObject:
    """Parse the object in an answer.

    Raises:
        ApiError: the answer is an error, or no object.
    """
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success and isinstance(body, dict):
        return body
    said = body.get("message") if isinstance(body, dict) else response.text[:_EXCERPT]
    fault = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
    if response.is_success:
        fault += ", but no object: is this the address of an API server?"
    raise ApiError(
        f"could not {request.purpose}: {fault}" + (f": {said}" if said else ""),
        status=response.status_code,
        retry_after_s=retry_seconds(response.headers.get("Retry-After")),
    )


def retry_seconds(text: object) -> float:
    """Seconds of a Retry-After; 0 for none, and for a date, which the API server never sends."""
    return float(text) if isinstance(text, str | int) and str(text).isdecimal() else 0.0


async def _lines(request: ApiRequest, response: httpx2.Response) -> AsyncIterator[bytes]:
    """Complete lines of an answer; an incomplete last line is dropped.

    Raises:
        ApiError: a line is too long.
    """
    rest = bytearray()
    async for piece in response.aiter_bytes():
        rest += piece
        *whole, last = rest.split(b"\n") if b"\n" in piece else (rest,)
        for line in whole:
            if line.strip():
                yield bytes(line)
        rest = last
        if len(rest) > _LONGEST_LINE_BYTES:
            raise ApiError(
                f"could not {request.purpose}: a line of more than {_LONGEST_LINE_BYTES} bytes",
                status=response.status_code,
            )

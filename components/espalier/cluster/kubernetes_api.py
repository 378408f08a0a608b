"""The Kubernetes API: configuration, requests, repetition and errors, blocking or asynchronous.

    api = KubernetesApi(cluster_configuration(kubeconfig), Patience(attempts=4))
    pods = api.send(read(object_path("v1", "pods", namespace), labelSelector="app=one"))["items"]

Objects are dictionaries in the API's own spelling. The kubernetes package reads kubeconfig files
with their plugins, and a service account's token, renewed as it expires. Requests go through httpx2
and not through that package: it has no asynchronous client, and a pool of thousands of sandboxes
needs no thread for any of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import tenacity

from espalier.cluster.kubernetes_requests import Request, create, owner_uid, read
from espalier.cluster.objects.names import K8sObject
from espalier.records import ClusterError

if TYPE_CHECKING:
    from kubernetes.client import Configuration

NOT_FOUND, CONFLICT, TOO_MANY_REQUESTS = 404, 409, 429
_CONNECTIONS = 32
_EXCERPT = 300
"""Characters of an answer without a Status object that an error repeats."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a request is repeated while the API server is away or answers with a fault.

    The pause doubles with every attempt. The last attempt is number `attempts`, or the last that
    starts within `total_s` of the first.
    """

    attempts: int | None = 1
    """None: as many as `total_s` allows."""
    total_s: float = float("inf")
    first_pause_s: float = 0.25
    longest_pause_s: float = 15.0
    timeout_s: float = 30.0
    """Of one attempt."""
    also: frozenset[int] = frozenset()
    """Statuses that are repeated besides those of `ApiError.is_transient`."""


class ApiError(ClusterError):
    """The API server refused a request, or did not answer it.

    Attributes:
        status: of HTTP; 0 where no answer came.
        is_transient: whether the server may answer the same request later.
    """

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.is_transient = status in (0, TOO_MANY_REQUESTS) or status >= 500


class KubernetesApi:
    """Blocking requests to one cluster."""

    def __init__(self, settings: Configuration, patience: Patience) -> None:
        self._settings = settings
        self._patience = patience
        self._http = httpx2.Client(
            base_url=settings.host,
            timeout=patience.timeout_s,
            verify=_verification(settings),
            trust_env=False,
        )

    def send(self, request: Request) -> K8sObject:
        """Send a request, repeated as `patience` says.

        Raises:
            ApiError: refused, or not answered.
        """
        return tenacity.Retrying(**_repeating(self._patience))(self._send_once, request)

    def find(self, path: str, purpose: str = "") -> K8sObject | None:
        """The object at a path; None where there is none.

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
        """Create an object, or take the present one where it has the same owner.

        Repeating a create is safe then: what the lost answer was about is adopted.

        Args:
            folder: path of its kind.
            manifest: with an entry in `metadata.ownerReferences`.
            kind: for messages.

        Raises:
            ClusterError: another owner has one of that name; refused; not answered.
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

    def discard(self, request: Request) -> bool:
        """Send a `delete`; False where the object is gone, or not what its preconditions say.

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

    def _send_once(self, request: Request) -> K8sObject:
        try:
            response = self._http.request(**_spelt(request, self._settings))
        except httpx2.TransportError as error:
            raise _no_answer(request, error) from error
        return _answer(request, response)


class AsyncKubernetesApi:
    """Requests to one cluster from an event loop.

    Attributes:
        sent: how many requests were sent, by method; a watch is a GET.
    """

    def __init__(self, settings: Configuration, patience: Patience) -> None:
        self.sent: Counter[str] = Counter()
        self._settings = settings
        self._patience = patience
        self._http = httpx2.AsyncClient(
            base_url=settings.host,
            timeout=None,  # an attempt has one as a whole; a watch has none
            transport=httpx2.AsyncHTTPTransport(
                verify=_verification(settings),
                trust_env=False,
                limits=httpx2.Limits(max_connections=_CONNECTIONS, keepalive_expiry=30.0),
            ),
        )

    async def send(self, request: Request) -> K8sObject:
        """Send a request, repeated as `patience` says; a create is sent once.

        Raises:
            ApiError: refused, or not answered.
        """
        if request.method == "POST":
            return await self._send_once(request)
        return await tenacity.AsyncRetrying(**_repeating(self._patience))(self._send_once, request)

    async def watch(self, request: Request) -> AsyncIterator[K8sObject]:
        """Events of a list (`read`) as they come, until the server ends the watch.

        Raises:
            ApiError: refused, or broken off.
        """
        self.sent["GET"] += 1
        spelt = _spelt(request, self._settings)
        spelt["params"] |= {"watch": "true"}
        try:
            async with self._http.stream(**spelt) as response:
                if not response.is_success:
                    await response.aread()
                    _answer(request, response)
                async for line in response.aiter_lines():
                    yield json.loads(line)
        except (httpx2.TransportError, ValueError) as error:
            raise _no_answer(request, error) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _send_once(self, request: Request) -> K8sObject:
        self.sent[request.method] += 1
        try:
            async with asyncio.timeout(self._patience.timeout_s):
                response = await self._http.request(**_spelt(request, self._settings))
        except (httpx2.TransportError, TimeoutError) as error:
            raise _no_answer(request, error) from error
        return _answer(request, response)


def cluster_configuration(kubeconfig: str | Path | None) -> Configuration:
    """How to reach a cluster, and with which credentials.

    Args:
        kubeconfig: a file, or several separated by colons; None or "" is the cluster that this pod
            runs in.

    Raises:
        ClusterError: there is no such cluster.
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
        raise ClusterError(
            f"no cluster to talk to: {error}. Run in a pod, set KUBECONFIG, or name a kubeconfig"
        ) from error
    return settings


def _spelt(request: Request, settings: Configuration) -> dict[str, Any]:
    """Arguments of httpx2's `request` and `stream`."""
    headers = {"Accept": "application/json"}
    if "authorization" in settings.api_key:  # read on every request: it is renewed when it is old
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


def _repeating(patience: Patience) -> dict[str, Any]:
    """What both kinds of `tenacity.Retrying` are made with."""

    def is_repeated(error: BaseException) -> bool:
        return isinstance(error, ApiError) and (error.is_transient or error.status in patience.also)

    stop = tenacity.stop_before_delay(patience.total_s)
    if patience.attempts is not None:
        stop = tenacity.stop_any(stop, tenacity.stop_after_attempt(patience.attempts))
    return {
        "retry": tenacity.retry_if_exception(is_repeated),
        "stop": stop,
        "wait": tenacity.wait_exponential(
            multiplier=patience.first_pause_s, max=patience.longest_pause_s
        ),
        "before_sleep": _log_pause,
        "retry_error_callback": _give_up,
    }


def _log_pause(state: tenacity.RetryCallState) -> None:
    assert state.outcome is not None, "an attempt came before the pause"
    _log.warning("%s; next attempt in %g s", state.outcome.exception(), state.upcoming_sleep)


def _give_up(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, ApiError), "nothing else is repeated"
    if state.attempt_number == 1:
        raise error
    took_s = state.seconds_since_start or 0.0
    raise ApiError(
        f"{error}; given up after {state.attempt_number} attempts in {took_s:.0f} s",
        status=error.status,
    ) from error


def _no_answer(request: Request, error: Exception) -> ApiError:
    said = f"{type(error).__name__} {error}".strip()
    return ApiError(f"could not {request.purpose}: the API server does not answer ({said})")


def _answer(request: Request, response: httpx2.Response) -> K8sObject:
    """The object in an answer.

    Raises:
        ApiError: it is a refusal, or no object.
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
    )

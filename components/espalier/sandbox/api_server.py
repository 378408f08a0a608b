"""The API server of a cluster, asked without blocking.

Credentials are the Kubernetes client's business: kubeconfig files with their plugins, or a service
account's token, renewed as they expire. Requests go through httpx2, so that a pool with thousands
of sandboxes needs no thread for any of them.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from espalier.manifests.objects import K8sObject
from espalier.sandbox.errors import (
    SandboxError,
    SandboxQuota,
    SandboxTimeout,
    SandboxUnavailable,
)

if TYPE_CHECKING:
    from kubernetes.client import Configuration

_REQUEST_S = 30.0
_TRIES = 6
_PAUSE_S = 0.25
"""Before the second try, then twice as long each time: an API server takes seconds to restart."""
_REPEATABLE = frozenset({"GET", "DELETE", "PATCH"})
"""A create is repeated by the pool, under another name."""
_LATER = frozenset({409, 429})
_CONNECTIONS = 32


class NotFoundError(SandboxError):
    """There is no such object, or no such kind."""


class ApiServer:
    """Requests as a cluster's configuration allows them.

    Attributes:
        requests: how many were sent, by method; a watch is a GET.
    """

    def __init__(self, kubeconfig: Path | None) -> None:
        self._settings = cluster_configuration(kubeconfig)
        self.requests: dict[str, int] = {}
        self._http = httpx2.AsyncClient(
            base_url=self._settings.host,
            timeout=None,  # every request has its own; a watch has none
            transport=httpx2.AsyncHTTPTransport(
                verify=_trust(self._settings),
                trust_env=False,
                limits=httpx2.Limits(max_connections=_CONNECTIONS, keepalive_expiry=30.0),
            ),
        )

    async def ask(
        self,
        method: str,
        path: str,
        body: K8sObject | None = None,
        *,
        query: Mapping[str, str] | None = None,
    ) -> K8sObject:
        """The object that is answered.

        Raises:
            NotFoundError: there is none.
            SandboxQuota: the quota is used up, or the server asks for patience.
            SandboxTimeout: the server cannot be reached, or fails.
            SandboxUnavailable: the request is forbidden, or nothing that the server takes.
        """
        tries = _TRIES if method in _REPEATABLE else 1
        for number in range(tries):
            try:
                return await self._ask_once(method, path, body, query or {})
            except (SandboxTimeout, SandboxQuota):
                if number + 1 == tries:
                    raise
                await asyncio.sleep(_PAUSE_S * 2**number)
        raise AssertionError("a request is tried at least once")

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[K8sObject]:
        """Events as they come, until the server ends the watch.

        Raises:
            SandboxError: as `ask`.
        """
        self._count("GET")
        watching = {**query, "watch": "true"}
        try:
            async with self._http.stream(
                "GET", path, params=watching, headers=self._headers()
            ) as response:
                if response.status_code != httpx2.codes.OK:
                    raise _refusal(f"watch {path}", response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    yield json.loads(line)
        except (httpx2.TransportError, ValueError) as error:
            raise SandboxTimeout(f"the API server ended the watch of {path}: {error!r}") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _ask_once(
        self, method: str, path: str, body: K8sObject | None, query: Mapping[str, str]
    ) -> K8sObject:
        self._count(method)
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = None if body is None else json.dumps(body).encode()
        headers = self._headers() | ({} if body is None else {"Content-Type": kind})
        try:
            async with asyncio.timeout(_REQUEST_S):
                response = await self._http.request(
                    method, path, params=query, content=content, headers=headers
                )
        except (httpx2.TransportError, TimeoutError) as error:
            raise SandboxTimeout(f"the API server does not answer: {error!r}") from error
        if not response.is_success:
            raise _refusal(f"{method} {path}", response.status_code, response.content)
        return response.json()

    def _headers(self) -> dict[str, str]:
        """Credentials; those of a service account are read again when they are old."""
        if "authorization" not in self._settings.api_key:
            return {}
        return {"Authorization": str(self._settings.get_api_key_with_prefix("authorization"))}

    def _count(self, method: str) -> None:
        self.requests[method] = self.requests.get(method, 0) + 1


def cluster_configuration(kubeconfig: Path | None) -> Configuration:
    """How the cluster of a kubeconfig is reached; None is the cluster that this pod runs in.

    Raises:
        SandboxUnavailable: there is no such cluster.
    """
    from kubernetes import client, config

    settings = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(str(kubeconfig), client_configuration=settings)
    except config.ConfigException as error:
        raise SandboxUnavailable(
            f"no cluster to make sandboxes in: {error}; run in a pod, or name a kubeconfig"
        ) from error
    return settings


def _trust(settings: Configuration) -> ssl.SSLContext:
    trusted = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if not settings.verify_ssl:
        trusted.check_hostname = False
        trusted.verify_mode = ssl.CERT_NONE
    if settings.cert_file:
        trusted.load_cert_chain(settings.cert_file, settings.key_file)
    return trusted


def _refusal(what: str, status: int, body: bytes) -> SandboxError:
    try:
        said: Any = json.loads(body)["message"]
    except (ValueError, TypeError, KeyError):
        said = body[:300].decode(errors="replace")
    message = f"{what}: HTTP {status}: {said}"
    if status == httpx2.codes.NOT_FOUND:
        return NotFoundError(message)
    if status in _LATER or (status == httpx2.codes.FORBIDDEN and "exceeded quota" in str(said)):
        return SandboxQuota(message)
    if status >= httpx2.codes.INTERNAL_SERVER_ERROR:
        return SandboxTimeout(message)
    return SandboxUnavailable(message)

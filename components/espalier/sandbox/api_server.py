"""The API server as a sandbox backend asks it: its faults are sandbox errors, by whose they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from espalier.cluster.kubernetes_api import (
    CONFLICT,
    NOT_FOUND,
    TOO_MANY_REQUESTS,
    ApiError,
    AsyncKubernetesApi,
    Patience,
    cluster_configuration,
)
from espalier.cluster.kubernetes_requests import Request
from espalier.cluster.objects.names import K8sObject
from espalier.records import ClusterError
from espalier.sandbox.errors import (
    SandboxError,
    SandboxQuota,
    SandboxTimeout,
    SandboxUnavailable,
)

PATIENCE = Patience(attempts=6, first_pause_s=0.25, also=frozenset({CONFLICT}))
"""8 s in all: an API server takes seconds to restart. The pool repeats creates, under new names."""
_FORBIDDEN = 403


class NotFoundError(SandboxError):
    """There is no such object, or no such kind."""


class ApiServer:
    """Requests to the cluster of a kubeconfig; None is the cluster that this pod runs in."""

    def __init__(self, kubeconfig: Path | None) -> None:
        try:
            self._api = AsyncKubernetesApi(cluster_configuration(kubeconfig), PATIENCE)
        except ClusterError as error:
            raise SandboxUnavailable(f"no cluster to make sandboxes in: {error}") from error
        self.requests = self._api.sent

    async def send(self, request: Request) -> K8sObject:
        """The object that is answered.

        Raises:
            NotFoundError: there is none.
            SandboxQuota: the quota is used up, or the server asks for patience.
            SandboxTimeout: the server cannot be reached, or fails.
            SandboxUnavailable: the request is forbidden, or nothing that the server takes.
        """
        try:
            return await self._api.send(request)
        except ApiError as error:
            raise _sandbox_error(error) from error

    async def watch(self, request: Request) -> AsyncIterator[K8sObject]:
        """Events as they come, until the server ends the watch.

        Raises:
            SandboxError: as `send`.
        """
        try:
            async for event in self._api.watch(request):
                yield event
        except ApiError as error:
            raise _sandbox_error(error) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()


def _sandbox_error(error: ApiError) -> SandboxError:
    message = str(error)
    if error.status == NOT_FOUND:
        return NotFoundError(message)
    if error.status in (CONFLICT, TOO_MANY_REQUESTS):
        return SandboxQuota(message)
    if error.status == _FORBIDDEN and "exceeded quota" in message:
        return SandboxQuota(message)
    return SandboxTimeout(message) if error.is_transient else SandboxUnavailable(message)

"""Holding the lease of a run: renewed by a task as long as its holder lives, deleted at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime

from espalier.cluster.kubernetes_requests import create, delete, merge, object_path
from espalier.cluster.objects.names import K8sObject, Owner
from espalier.sandbox.api_server import ApiServer, NotFoundError
from espalier.sandbox.errors import SandboxError, SandboxQuota
from espalier.sandbox.lease import DURATION_S, lease_owner, renewed

_EVERY_S = DURATION_S / 6


class HeldLease:
    """A run's lease in the sandbox namespace, which owns its sandboxes.

    Args:
        server: of the cluster.
        lease: as it is created at a time (`run_lease`); one that a killed trainer of the same run
            left is taken over.
    """

    def __init__(self, server: ApiServer, lease: Callable[[datetime], K8sObject]) -> None:
        self._server = server
        self._lease = lease
        metadata = lease(_now())["metadata"]
        self._name = metadata["name"]
        self._folder = object_path("coordination.k8s.io/v1", "leases", metadata["namespace"])
        self._owner: Owner | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def owner(self) -> Owner:
        """What sandboxes are owned by; it changes if somebody deletes the lease."""
        assert self._owner is not None, "the lease is taken first"
        return self._owner

    async def take(self) -> None:
        """Create the lease, or renew the one that is there, and keep renewing it.

        Raises:
            SandboxError: neither is possible.
        """
        await self._take()
        self._task = asyncio.create_task(self._keep_renewing())

    async def release(self) -> None:
        """Delete it, and with it every sandbox that is left.

        Raises:
            SandboxError: it could not be deleted; the collector does so when it has run out.
        """
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._owner is not None:
            with contextlib.suppress(NotFoundError):
                await self._server.send(delete(f"{self._folder}/{self._name}"))

    async def _take(self) -> None:
        try:
            made = await self._server.send(create(self._folder, self._lease(_now())))
        except SandboxQuota:  # 409: it is there
            made = await self._renew()
        self._owner = lease_owner(self._name, made["metadata"]["uid"])

    async def _renew(self) -> K8sObject:
        return await self._server.send(merge(f"{self._folder}/{self._name}", renewed(_now())))

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self._renew()
            except NotFoundError:  # its sandboxes go with it; the next ones need an owner
                with contextlib.suppress(SandboxError):
                    await self._take()
            except SandboxError:
                continue  # tried again long before it runs out


def _now() -> datetime:
    return datetime.now(UTC)

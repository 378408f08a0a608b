"""The lease of a run in the sandbox namespace, which owns the run's sandboxes.

An owner must be in the same namespace, so the trainer's pod cannot own its sandboxes. It holds and
renews this lease instead; when the trainer is gone the lease expires, the collector (`garbage`)
deletes it, and Kubernetes deletes everything that it owns.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from espalier.cluster.kubernetes_api import create, delete, merge, object_path
from espalier.cluster.objects.names import K8sObject, Owner, object_labels, run_object_name
from espalier.sandbox.api_server import ApiServer, NotFoundError
from espalier.sandbox.protocol import SandboxError, SandboxQuota

API_VERSION = "coordination.k8s.io/v1"
DURATION_S = 120
"""Without renewal for this long the trainer counts as gone; it renews six times as often."""


def run_lease(
    run_id: str, *, namespace: str, holder: str, now: datetime, labels: Mapping[str, str]
) -> K8sObject:
    """A new lease, held from `now` on.

    Args:
        run_id: part of the lease's name.
        namespace: of the sandboxes.
        holder: such as the name of the trainer's pod; for people to read.
        now: in UTC.
        labels: `kubernetes.labels` of the profile.

    Raises:
        ManifestError: `run_id` cannot be part of a name.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": "Lease",
        "metadata": {
            "name": run_object_name(run_id, "sandboxes"),
            "namespace": namespace,
            "labels": object_labels("espalier-sandbox", "sandbox-lease", run_id, labels),
        },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": DURATION_S,
            "acquireTime": micro_time(now),
            "renewTime": micro_time(now),
        },
    }


def renewed(now: datetime) -> K8sObject:
    """Merge patch that renews a lease."""
    return {"spec": {"renewTime": micro_time(now)}}


def lease_owner(name: str, uid: str) -> Owner:
    """The created lease as the owner of sandboxes."""
    return Owner(api_version=API_VERSION, kind="Lease", name=name, uid=uid)


def micro_time(moment: datetime) -> str:
    """RFC 3339 with microseconds and Z: the API server's MicroTime."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_EVERY_S = DURATION_S / 6


class HeldLease:
    """Takes a run's lease, renews it in a task, and deletes it at the end.

    Args:
        server: of the cluster.
        lease: makes the lease for a time (`run_lease`); an existing lease of the same run, left by
            a killed trainer, is taken over.
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
        """Owner of the sandboxes; changes if the lease is deleted and created again."""
        assert self._owner is not None, "the lease is taken first"
        return self._owner

    async def take(self) -> None:
        """Create the lease or take over the existing one, and renew it in a task.

        Raises:
            SandboxError: the API server refuses or is unreachable.
        """
        await self._take()
        self._task = asyncio.create_task(self._keep_renewing())

    async def release(self) -> None:
        """Delete the lease, and with it every remaining sandbox.

        Raises:
            SandboxError: it could not be deleted; the collector will, after it expired.
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
        except SandboxQuota:  # 409: the lease exists
            made = await self._renew()
        self._owner = lease_owner(self._name, made["metadata"]["uid"])

    async def _renew(self) -> K8sObject:
        return await self._server.send(merge(f"{self._folder}/{self._name}", renewed(_now())))

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self._renew()
            except NotFoundError:  # deleted with its sandboxes; new ones need an owner
                with contextlib.suppress(SandboxError):
                    await self._take()
            except SandboxError:
                continue  # the next renewals come long before it expires


def _now() -> datetime:
    return datetime.now(UTC)

"""The lease of a run in the sandbox namespace, and the shared objects that it owns.

An owner must be in the same namespace, so the trainer's pod cannot own its sandboxes. The trainer
holds and renews this lease instead. When the trainer is gone, the lease expires, the collector
(`garbage`) deletes it, and Kubernetes deletes everything that it owns. A trainer that is still
alive then takes a new lease and recreates the shared objects that it owns.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from espalier.cluster.kubernetes_api import create, delete, merge, object_path, owner_uid, read
from espalier.cluster.objects.names import K8sObject, Owner, object_labels, run_object_name
from espalier.sandbox.api_server import ApiServer, NotFoundError
from espalier.sandbox.protocol import SandboxError, SandboxQuota, SandboxTimeout

API_VERSION = "coordination.k8s.io/v1"
DURATION_S = 120
"""Without renewal for this long the trainer counts as gone; it renews six times as often."""


def run_lease(
    run_id: str, *, namespace: str, holder: str, now: datetime, labels: Mapping[str, str]
) -> K8sObject:
    """Return a new lease, held from `now` on.

    Args:
        run_id: part of the lease's name.
        namespace: the namespace of the sandboxes.
        holder: name of the holder for people to read, such as the trainer's pod.
        now: the current time in UTC.
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
    """Return the merge patch that renews a lease."""
    return {"spec": {"renewTime": micro_time(now)}}


def lease_owner(name: str, uid: str) -> Owner:
    """Return the created lease as the owner of sandboxes."""
    return Owner(api_version=API_VERSION, kind="Lease", name=name, uid=uid)


def micro_time(moment: datetime) -> str:
    """Format a time as the API server's MicroTime: RFC 3339 with microseconds and Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_EVERY_S = DURATION_S / 6
_AT_MOST_EVERY_S = 2.0
"""Pause between checks, however often sandboxes are lost."""

_log = logging.getLogger(__name__)


class HeldLease:
    """Takes a run's lease, renews it in a task, and deletes it at the end.

    Args:
        server: the cluster's API server.
        lease: returns the lease for a given time (`run_lease`); an existing lease of the same run,
            left by a killed trainer, is taken over.
        held: called with the owner after the lease was taken, and after each renewal; creates the
            missing ones of the objects that the lease owns.
    """

    def __init__(
        self,
        server: ApiServer,
        lease: Callable[[datetime], K8sObject],
        held: Callable[[Owner], Awaitable[None]],
    ) -> None:
        self._server = server
        self._lease = lease
        self._held = held
        metadata = lease(_now())["metadata"]
        self._name = metadata["name"]
        self._folder = object_path("coordination.k8s.io/v1", "leases", metadata["namespace"])
        self._owner: Owner | None = None
        self._task: asyncio.Task[None] | None = None
        self._doubted = asyncio.Event()

    @property
    def owner(self) -> Owner:
        """The owner of the sandboxes; changes if the lease is deleted and created again."""
        assert self._owner is not None, "the lease was taken"
        return self._owner

    async def take(self) -> None:
        """Create the lease or take over the existing one, and renew it in a task.

        Raises:
            SandboxError: the API server refuses or is unreachable.
        """
        await self._take()
        await self._held(self.owner)
        self._task = asyncio.create_task(self._keep_renewing())

    def doubt(self) -> None:
        """Renew soon: a sandbox was deleted, perhaps because the lease is gone."""
        self._doubted.set()

    async def release(self) -> None:
        """Delete the lease, and with it every remaining sandbox.

        Raises:
            SandboxError: the deletion failed; the collector deletes the lease after it expires.
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
            await asyncio.sleep(_AT_MOST_EVERY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S - _AT_MOST_EVERY_S):
                    await self._doubted.wait()
            self._doubted.clear()
            try:
                await self._renew_or_take()
                await self._held(self.owner)
            except SandboxError as error:
                # only a warning: several renewals follow before the lease expires
                _log.warning("the lease %s: %s", self._name, error)

    async def _renew_or_take(self) -> None:
        try:
            renewed_lease = await self._renew()
        except NotFoundError:  # deleted with its sandboxes; new ones need an owner
            await self._take()
            return
        # the uid differs if somebody deleted the lease and created it again
        self._owner = lease_owner(self._name, renewed_lease["metadata"]["uid"])


class Owned(NamedTuple):
    """An object that exists once per run, such as agent-sandbox's pool of warm pods."""

    folder: str
    """API path of its kind."""
    manifest: Callable[[Owner], K8sObject]


_DIGEST_ANNOTATION = "espalier.dev/spec-digest"
_GONE_WITHIN_S = 15.0
_LOOK_EVERY_S = 0.25


async def ensure(server: ApiServer, owned: Sequence[Owned], owner: Owner) -> None:
    """Create missing objects, and replace those of another owner or another trainer.

    Kubernetes is about to delete an object whose lease is gone. An object of a killed trainer holds
    the digest of a token that only that trainer knew.

    Raises:
        SandboxError: the API server refuses or is unreachable, or an old object is not deleted.
    """
    for folder, manifest in owned:
        wanted = manifest(owner)
        # a digest of the spec that we write, because the API server adds defaults to it
        spec = json.dumps(wanted["spec"], sort_keys=True)
        digest = {_DIGEST_ANNOTATION: hashlib.sha256(spec.encode()).hexdigest()}
        wanted = {**wanted, "metadata": {**wanted["metadata"], "annotations": digest}}
        path = f"{folder}/{wanted['metadata']['name']}"
        present = await _find(server, path)
        if present is not None and _is_as(present, wanted):
            continue
        if present is not None:
            await _delete(server, path, uid=present["metadata"]["uid"])
        await server.send(create(folder, wanted))


def _is_as(present: K8sObject, wanted: K8sObject) -> bool:
    metadata = present["metadata"]
    annotations = metadata.get("annotations") or {}
    return (
        "deletionTimestamp" not in metadata
        and owner_uid(present) == owner_uid(wanted)
        and annotations.get(_DIGEST_ANNOTATION)
        == wanted["metadata"]["annotations"][_DIGEST_ANNOTATION]
    )


async def _find(server: ApiServer, path: str) -> K8sObject | None:
    try:
        return await server.send(read(path))
    except NotFoundError:
        return None


async def _delete(server: ApiServer, path: str, *, uid: str) -> None:
    """Delete an object and wait until its name is free.

    Raises:
        SandboxTimeout: it still exists.
    """
    with contextlib.suppress(NotFoundError, SandboxQuota):  # gone, or replaced by another object
        await server.send(delete(path, uid=uid))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_GONE_WITHIN_S):
            while (present := await _find(server, path)) and present["metadata"]["uid"] == uid:
                await asyncio.sleep(_LOOK_EVERY_S)
            return
    raise SandboxTimeout(f"{path} of an earlier lease was not deleted in {_GONE_WITHIN_S:g} s")


def _now() -> datetime:
    return datetime.now(UTC)

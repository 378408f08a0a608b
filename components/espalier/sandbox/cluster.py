"""What all sandboxes of a run share on a cluster, and how one is asked for.

A sandbox is a pod, made for it alone; where agent-sandbox is installed it is a claim, for which the
controller hands out a pod that it has ready.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, Self

from espalier.cluster.kubernetes_requests import create, delete, object_path, read
from espalier.cluster.objects.names import RUN_LABEL, K8sObject
from espalier.sandbox import agent_sandbox
from espalier.sandbox.api_server import ApiServer, NotFoundError
from espalier.sandbox.client import Token, server_settings
from espalier.sandbox.cluster_state import state_of_claim, state_of_pod
from espalier.sandbox.cluster_watch import ClusterWatch
from espalier.sandbox.held_lease import HeldLease
from espalier.sandbox.lease import run_lease
from espalier.sandbox.pod import SandboxPodSettings, sandbox_pod
from espalier.sandbox.protocol import Limits
from espalier.sandbox.undoing import undone_on_failure

_OWN_USER = {"SANDBOXD_OWN_USER": "1"}
"""A pod made for one sandbox runs as a user that no other has (`own_user`)."""


class Wanted(Protocol):
    """What a backend is told of its sandboxes; see `KubernetesBackend`."""

    settings: SandboxPodSettings
    run_id: str
    limits: Limits
    preimport: Sequence[str]
    kubeconfig: Path | None
    holder: str
    warm_pods: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """An open connection to it.

    Attributes:
        folder: path of the objects that sandboxes are: pods, or claims.
        shared_token: of all sandboxes that agent-sandbox makes of one template.
    """

    wanted: Wanted
    server: ApiServer
    lease: HeldLease
    watch: ClusterWatch
    folder: str
    shared_token: Token | None

    @classmethod
    async def open(cls, wanted: Wanted) -> Self:
        """Connect, take the lease, watch.

        Raises:
            SandboxError: the cluster cannot be reached, or does not allow it.
        """
        server = ApiServer(wanted.kubeconfig)
        namespace = wanted.settings.namespace
        lease = HeldLease(server, lambda now: _lease(wanted, now))
        async with undone_on_failure(lease.release, server.close):
            await lease.take()
            token = Token() if await _has_agent_sandbox(server) else None
            if token is not None:
                await _fill_warm_pool(wanted, server, lease, token)
            kind = "pods" if token is None else "sandboxclaims"
            version = "v1" if token is None else agent_sandbox.API_VERSION
            folder = object_path(version, kind, namespace)
            state_of = state_of_pod if token is None else state_of_claim
            watch = ClusterWatch(server, folder, f"{RUN_LABEL}={wanted.run_id}", state_of)
            await watch.start()
        return cls(wanted, server, lease, watch, folder, token)

    async def request(self, name: str) -> Token:
        """Ask for a sandbox of that name; what its server will want to be shown.

        Raises:
            SandboxError: as `ApiServer.send`.
        """
        wanted, owner = self.wanted, self.lease.owner
        if self.shared_token is not None:
            token = self.shared_token
            made = agent_sandbox.sandbox_claim(
                wanted.settings, name=name, run_id=wanted.run_id, owner=owner
            )
        else:
            token = Token()
            environment = _environment(wanted, token) | _OWN_USER
            made = sandbox_pod(
                wanted.settings, environment, name=name, run_id=wanted.run_id, owner=owner
            )
        await self.server.send(create(self.folder, made))
        return token

    async def delete(self, name: str) -> bool:
        """Have it ended; false if there is none."""
        try:
            await self.server.send(delete(f"{self.folder}/{name}"))
        except NotFoundError:
            return False
        return True

    async def gone(self, name: str, within_s: float) -> None:
        """Wait until it is; somebody listens to the watch of it meanwhile.

        Raises:
            SandboxTimeout: it was not in time.
        """
        await self.watch.until(name, lambda state: state.is_gone, within_s)

    async def close(self) -> None:
        """Delete the lease, and with it what is left of the run's sandboxes."""
        async with contextlib.AsyncExitStack() as ending:  # each, whatever becomes of the others
            ending.push_async_callback(self.server.close)
            ending.push_async_callback(self.lease.release)
            await self.watch.close()


def _lease(wanted: Wanted, now: datetime) -> K8sObject:
    return run_lease(
        wanted.run_id,
        namespace=wanted.settings.namespace,
        holder=wanted.holder,
        now=now,
        labels=wanted.settings.labels,
    )


def _environment(wanted: Wanted, token: Token) -> dict[str, str]:
    return server_settings(token, wanted.limits, wanted.preimport)


async def _has_agent_sandbox(server: ApiServer) -> bool:
    try:
        await server.send(read(f"/apis/{agent_sandbox.API_VERSION}"))
    except NotFoundError:
        return False
    return True


async def _fill_warm_pool(
    wanted: Wanted, server: ApiServer, lease: HeldLease, token: Token
) -> None:
    """Create template and pool; the lease owns both."""
    environment, owner = _environment(wanted, token), lease.owner
    template = agent_sandbox.sandbox_template(
        wanted.settings, environment, run_id=wanted.run_id, owner=owner
    )
    pool = agent_sandbox.sandbox_warm_pool(
        wanted.settings, run_id=wanted.run_id, owner=owner, replicas=wanted.warm_pods
    )
    for kind, made in (("sandboxtemplates", template), ("sandboxwarmpools", pool)):
        folder = object_path(agent_sandbox.API_VERSION, kind, wanted.settings.namespace)
        await server.send(create(folder, made))

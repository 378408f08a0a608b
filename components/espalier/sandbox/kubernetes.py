"""Sandboxes as pods of a cluster, each with sandboxd in it; where it has them, agent-sandbox's.

The pods can be reached from inside the cluster alone (`k8s/` lets the pipeline's own in).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import tenacity

from espalier.cluster.objects.names import run_object_name
from espalier.config.cluster import amount
from espalier.sandbox.client import SandboxClient, Token
from espalier.sandbox.cluster import Cluster
from espalier.sandbox.cluster_state import ClusterState
from espalier.sandbox.errors import (
    SandboxError,
    SandboxLost,
    SandboxQuota,
    SandboxTimeout,
)
from espalier.sandbox.pod import SANDBOXD_PORT, SandboxPodSettings
from espalier.sandbox.protocol import Limits
from espalier.sandbox.undoing import undone_on_failure

_BESIDES_BYTES = 256 * 2**20
"""Memory of sandboxd, its warm interpreters and shared memory, within the container's limit."""
_ANSWER_S = 2.0
_ASK_AGAIN_S = 0.03
_END_WITHIN_S = 60.0


@dataclass(kw_only=True, eq=False)
class KubernetesBackend:
    """Makes sandboxes on a cluster.

    Attributes:
        settings: image, namespace, resources and RuntimeClass of the pods.
        run_id: the run that they belong to; its lease owns them, and one backend holds it.
        limits: of every sandbox; they fit into the resources.
        preimport: modules that a Python run finds imported.
        kubeconfig: of the cluster; None is the one that this process runs in.
        holder: of the lease, for people to read.
        warm_pods: that agent-sandbox keeps ready, where the cluster has it.
        start_timeout_s: until a sandbox must answer.
    """

    settings: SandboxPodSettings
    run_id: str
    limits: Limits = field(default_factory=Limits)
    preimport: Sequence[str] = ("numpy",)
    kubeconfig: Path | None = None
    holder: str = field(default_factory=socket.gethostname)
    warm_pods: int = 4
    start_timeout_s: float = 120.0
    name: str = field(default="kubernetes", init=False, repr=False)
    _cluster: Cluster | None = field(default=None, init=False, repr=False)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse limits that the pods have no room for."""
        resources, limits = self.settings.pods.resources, self.limits
        if limits.disk_bytes > amount(resources.disk_limit):
            raise ValueError(
                f"limits.disk_bytes={limits.disk_bytes} is more than the pods' "
                f"kubernetes.sandboxes.resources.disk_limit={resources.disk_limit}"
            )
        folders = 2 * amount(resources.disk_limit) if self.settings.pods.scratch == "memory" else 0
        needed = limits.memory_bytes + folders + _BESIDES_BYTES
        if needed > amount(resources.memory_limit):
            raise ValueError(
                f"limits.memory_bytes={limits.memory_bytes}, the folders in memory and sandboxd "
                f"need {needed} bytes, and kubernetes.sandboxes.resources.memory_limit is "
                f"{resources.memory_limit}; raise that, or lower the limit"
            )

    async def create(self) -> KubernetesSandbox:
        """See `Backend.create`."""
        cluster = await self._open()
        name = run_object_name(self.run_id, f"s-{secrets.token_hex(5)}")
        async with undone_on_failure(partial(_deleted, cluster, name)):
            token = await cluster.request(name)
            state = await self._reached(cluster, name)
            sandbox = KubernetesSandbox(name, self.limits, token, state, cluster)
            async with undone_on_failure(sandbox.give_up):
                await sandbox.wait_for_server(self.start_timeout_s)
        return sandbox

    async def close(self) -> None:
        """Give up the lease, and every sandbox with it."""
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            await cluster.close()

    async def _open(self) -> Cluster:
        async with self._opening:
            if self._cluster is None:
                self._cluster = await Cluster.open(self)
            return self._cluster

    async def _reached(self, cluster: Cluster, name: str) -> ClusterState:
        last = ClusterState()

        def is_decided(state: ClusterState) -> bool:
            nonlocal last
            last = state
            return bool(state.address or state.ended)

        try:
            state = await cluster.watch.until(name, is_decided, self.start_timeout_s)
        except SandboxTimeout as error:
            if last.is_unschedulable:
                raise SandboxQuota(str(error)) from error
            raise
        if state.ended:
            raise SandboxLost(f"{name} ended before it was ready: {state.ended}")
        return state


async def _deleted(cluster: Cluster, name: str) -> None:
    """The error that led here says more than one of deleting; and the lease has what is left."""
    with contextlib.suppress(SandboxError):
        await cluster.delete(name)


class KubernetesSandbox(SandboxClient):
    """One pod; when the cluster takes it away, whoever waits for it is told at once, and why."""

    def __init__(
        self, name: str, limits: Limits, token: Token, state: ClusterState, cluster: Cluster
    ) -> None:
        host = f"[{state.address}]" if ":" in str(state.address) else state.address
        super().__init__(name, limits, token, f"http://{host}:{SANDBOXD_PORT}")
        self._cluster = cluster
        self._stop_hearing = cluster.watch.tell(name, self._hear)

    async def wait_for_server(self, within_s: float) -> None:
        """Ask until sandboxd answers: a container runs a moment before it listens.

        Raises:
            SandboxTimeout: it never did.
            SandboxLost: the pod ended first.
        """

        def may_answer_later(error: BaseException) -> bool:
            return isinstance(error, SandboxLost | SandboxTimeout) and not self.lost_because

        asking = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(may_answer_later),
            stop=tenacity.stop_after_delay(within_s),
            wait=tenacity.wait_fixed(_ASK_AGAIN_S),
            reraise=True,
        )
        await asking(self.wait_until_ready, _ANSWER_S)

    async def close(self) -> None:
        """See `Sandbox.close`; the pod is gone when this returns.

        Raises:
            SandboxTimeout: its node did not end it in time; the lease and its own time will.
        """
        await self.hang_up()
        try:
            if await self._cluster.delete(self.name):
                await self._cluster.gone(self.name, _END_WITHIN_S)
        finally:
            self._stop_hearing()

    async def give_up(self) -> None:
        """Leave a pod that never served; its end is not waited for."""
        await self.hang_up()
        self._stop_hearing()

    def _hear(self, state: ClusterState) -> None:
        if state.ended:
            self.lose(state.ended)

"""Sandboxes as pods of a cluster, one pod each, with sandboxd in it.

If the cluster has agent-sandbox, a sandbox is a claim, for which its controller hands out a warm
pod. The network policies of `k8s/` let only pods of the pipeline reach sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import tenacity

from espalier.cluster.kubernetes_api import create, delete, delete_last, object_path, read
from espalier.cluster.objects.names import INSTANCE_LABEL, K8sObject, Owner, run_object_name
from espalier.cluster.watches import WatchSettings
from espalier.config.cluster import amount
from espalier.sandbox.api_server import (
    ApiServer,
    ClusterState,
    ClusterWatch,
    NotFoundError,
    state_of_claim,
    state_of_pod,
)
from espalier.sandbox.client import SandboxClient, Token, cleanup_on_failure, server_settings
from espalier.sandbox.lease import HeldLease, Owned, ensure, run_lease
from espalier.sandbox.pod import (
    AGENT_SANDBOX_API,
    SANDBOXD_PORT,
    SandboxPodSettings,
    sandbox_claim,
    sandbox_pod,
    sandbox_template,
    sandbox_warm_pool,
)
from espalier.sandbox.protocol import (
    ExecResult,
    Limits,
    SandboxError,
    SandboxLost,
    SandboxQuota,
    SandboxTimeout,
    SandboxUnavailable,
)
from sandboxd.wire import RunRequest

T = TypeVar("T")
_log = logging.getLogger(__name__)

_OWN_USER = {"SANDBOXD_OWN_USER": "1"}
"""Tells sandboxd that no other sandbox runs as its user (`pod.own_user`)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A run's connection to the cluster, shared by its sandboxes.

    Attributes:
        folder: API path of the pods, or of agent-sandbox's claims.
        shared_token: the token of all claimed sandboxes; None if each sandbox has its own.
    """

    backend: KubernetesBackend
    server: ApiServer
    lease: HeldLease
    watch: ClusterWatch
    folder: str
    shared_token: Token | None

    @classmethod
    async def open(cls, backend: KubernetesBackend) -> Self:
        """Connect, take the lease and start the watch.

        Raises:
            SandboxError: the cluster is unreachable or refuses.
        """
        server = ApiServer(backend.kubeconfig)
        namespace = backend.settings.namespace
        async with cleanup_on_failure(server.close):
            token = Token() if await _uses_claims(backend, server) else None
            owned = () if token is None else _warm_pool(backend, token)
            lease = HeldLease(
                server, lambda now: _lease(backend, now), partial(ensure, server, owned)
            )
            async with cleanup_on_failure(lease.release):
                await lease.take()  # before anything that it has to own is created
                kind = "pods" if token is None else "sandboxclaims"
                version = "v1" if token is None else AGENT_SANDBOX_API
                folder = object_path(version, kind, namespace)
                state_of = state_of_pod if token is None else state_of_claim
                selector = f"{INSTANCE_LABEL}={backend.run_id}"
                watch = ClusterWatch(server, folder, selector, state_of, backend.watching)
                await watch.start()
        return cls(backend, server, lease, watch, folder, token)

    async def request(self, name: str) -> Token:
        """Create the pod or claim of a sandbox and return the token for its server.

        Raises:
            SandboxError: as `ApiServer.send`.
        """
        backend, owner = self.backend, self.lease.owner
        if self.shared_token is not None:
            token = self.shared_token
            manifest = sandbox_claim(
                backend.settings,
                name=name,
                run_id=backend.run_id,
                owner=owner,
                now=datetime.now(UTC),
            )
        else:
            token = Token()
            environment = _environment(backend, token) | _OWN_USER
            manifest = sandbox_pod(
                backend.settings, environment, name=name, run_id=backend.run_id, owner=owner
            )
        await self.server.send(create(self.folder, manifest))
        return token

    async def delete(self, name: str) -> bool:
        """Delete the pod, or the claim with its pod; False if it does not exist."""
        path = f"{self.folder}/{name}"
        try:
            # delete the claim last: without it, the watch would not see that the pod still runs
            await self.server.send(delete(path) if self.shared_token is None else delete_last(path))
        except NotFoundError:
            return False
        return True

    async def end_of_pod(self, name: str, address: str, within_s: float) -> ClusterState | None:
        """Return how the pod of a lost sandbox ended; None if it did not, or if it is unknown.

        A claim of agent-sandbox says only that its pod failed, so the pod itself is read.
        """

        def has_ended(state: ClusterState) -> bool:
            return bool(self.of_pod(state, address).ended)

        try:
            state = self.of_pod(await self.watch.until(name, has_ended, within_s), address)
            if self.shared_token is None or state.is_gone:
                return state
            found = await self._pods_at(address)
        except SandboxError:
            return None
        ended = [pod for pod in found if state_of_pod(pod).ended]
        if not ended:
            return state
        return state_of_pod(max(ended, key=lambda pod: pod["metadata"]["creationTimestamp"]))

    async def running_pod(self, name: str, state: ClusterState) -> ClusterState:
        """Return the state of the pod that a claim was given; a pod's state is its own.

        Raises:
            SandboxLost: the claim's pod does not run any more.
            SandboxError: as `ApiServer.send`.
        """
        if self.shared_token is None:
            return state
        states = map(state_of_pod, await self._pods_at(str(state.address)))
        running = [found for found in states if found.address == state.address]
        if not running:
            raise SandboxLost(f"{name}: no pod runs at {state.address} any more")
        return running[0]

    async def _pods_at(self, address: str) -> list[K8sObject]:
        pods = object_path("v1", "pods", self.backend.settings.namespace)
        at = {"fieldSelector": f"status.podIP={address}"}
        return (await self.server.send(read(pods, **at)))["items"]

    def of_pod(self, state: ClusterState, address: str) -> ClusterState:
        """Return the state of the pod at this address: agent-sandbox replaces a lost pod."""
        is_replaced = self.shared_token is not None and state.address != address
        return _REPLACED if is_replaced and not state.ended else state

    async def gone(self, name: str, within_s: float) -> None:
        """Wait until the pod or claim is deleted.

        Raises:
            SandboxTimeout: it still exists after `within_s`.
        """
        await self.watch.until(name, lambda state: state.is_gone, within_s)

    async def close(self) -> None:
        """Delete the lease, and with it all remaining sandboxes of the run."""
        async with contextlib.AsyncExitStack() as ending:  # all three run, even if one fails
            ending.push_async_callback(self.server.close)
            ending.push_async_callback(self.lease.release)
            await self.watch.close()


def _lease(backend: KubernetesBackend, now: datetime) -> K8sObject:
    return run_lease(
        backend.run_id,
        namespace=backend.settings.namespace,
        holder=backend.holder,
        now=now,
        labels=backend.settings.labels,
    )


def _environment(backend: KubernetesBackend, token: Token) -> dict[str, str]:
    return server_settings(token, backend.limits, backend.preimport)


_REPLACED = ClusterState(ended="its pod was deleted, and agent-sandbox put another in its place")


async def _uses_claims(backend: KubernetesBackend, server: ApiServer) -> bool:
    """Return whether sandboxes are agent-sandbox claims, as the profile configures.

    Raises:
        SandboxUnavailable: the profile requires agent-sandbox and the cluster lacks it.
    """
    wanted = backend.settings.pods.agent_sandbox
    if wanted == "never":
        return False
    try:
        await server.send(read(f"/apis/{AGENT_SANDBOX_API}"))
    except NotFoundError:
        if wanted == "auto":
            return False
        raise SandboxUnavailable(
            f'kubernetes.sandboxes.agent_sandbox = "always", and the cluster has no '
            f'{AGENT_SANDBOX_API}: install agent-sandbox with its extensions, or set "auto"'
        ) from None
    return True


def _warm_pool(backend: KubernetesBackend, token: Token) -> tuple[Owned, ...]:
    """Return agent-sandbox's template and warm pool."""
    environment, namespace = _environment(backend, token), backend.settings.namespace

    def template(owner: Owner) -> K8sObject:
        return sandbox_template(backend.settings, environment, run_id=backend.run_id, owner=owner)

    def pool(owner: Owner) -> K8sObject:
        return sandbox_warm_pool(
            backend.settings, run_id=backend.run_id, owner=owner, replicas=backend.warm_pods
        )

    kinds = {"sandboxtemplates": template, "sandboxwarmpools": pool}
    return tuple(
        Owned(object_path(AGENT_SANDBOX_API, kind, namespace), manifest)
        for kind, manifest in kinds.items()
    )


_SERVER_BYTES = 256 * 2**20
"""Memory for sandboxd, its warm interpreters and shared memory."""
_ANSWER_S = 2.0
_ASK_AGAIN_S = 0.03
_END_WITHIN_S = 60.0
_REASON_WITHIN_S = 10.0
"""How long to wait for the reason: the connection breaks when a container dies, and its node
reports the reason up to a few seconds later."""


@dataclass(kw_only=True, eq=False)
class KubernetesBackend:
    """Creates sandboxes on a cluster.

    Attributes:
        settings: image, namespace, resources and RuntimeClass of the pods.
        run_id: names the lease that owns the sandboxes; one backend per run holds it.
        limits: limits of every sandbox; they must fit into the resources.
        preimport: modules imported before any Python run.
        kubeconfig: configuration of the cluster; None means the cluster of this pod.
        holder: name of the lease's holder, for people to read.
        warm_pods: pods that agent-sandbox keeps ready, if the cluster has it.
        start_timeout_s: time within which a new sandbox must answer.
        watching: deadlines and pauses of the watch over all sandboxes.
    """

    settings: SandboxPodSettings
    run_id: str
    limits: Limits = field(default_factory=Limits)
    preimport: Sequence[str] = ("numpy",)
    kubeconfig: Path | None = None
    holder: str = field(default_factory=socket.gethostname)
    warm_pods: int = 4
    start_timeout_s: float = 120.0
    watching: WatchSettings = field(default_factory=WatchSettings)
    name: str = field(default="kubernetes", init=False, repr=False)
    cluster: Cluster | None = field(default=None, init=False, repr=False)
    """The connection that its sandboxes share, opened for the first one."""
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)
    _image_id: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        """Check that the limits fit into the pods' resources."""
        resources, limits = self.settings.pods.resources, self.limits
        if limits.disk_bytes > amount(resources.disk_limit):
            raise ValueError(
                f"limits.disk_bytes={limits.disk_bytes} is more than the pods' "
                f"kubernetes.sandboxes.resources.disk_limit={resources.disk_limit}"
            )
        folders = 2 * amount(resources.disk_limit) if self.settings.pods.scratch == "memory" else 0
        needed = limits.memory_bytes + folders + _SERVER_BYTES
        if needed > amount(resources.memory_limit):
            raise ValueError(
                f"limits.memory_bytes={limits.memory_bytes}, the folders in memory and sandboxd "
                f"need {needed} bytes, and kubernetes.sandboxes.resources.memory_limit is "
                f"{resources.memory_limit}; raise that, or lower the limit"
            )

    async def create(self) -> KubernetesSandbox:
        """Create a sandbox in a pod or claim, and wait until it answers."""
        cluster = await self._open()
        name = run_object_name(self.run_id, f"s-{secrets.token_hex(5)}")
        async with cleanup_on_failure(partial(_delete_quietly, cluster, name)):
            token = await cluster.request(name)
            state = await self._wait_until_running(cluster, name)
            state = await cluster.running_pod(name, state)
            self._require_class(name, state)
            self._compare_image(state)
            sandbox = KubernetesSandbox(name, self.limits, token, state, cluster)
            async with cleanup_on_failure(sandbox.abandon):
                await sandbox.wait_for_server(self.start_timeout_s)
        return sandbox

    async def close(self) -> None:
        """Release the lease, which deletes every sandbox."""
        if self.cluster is not None:
            cluster, self.cluster = self.cluster, None
            await cluster.close()

    async def _open(self) -> Cluster:
        async with self._opening:
            if self.cluster is None:
                self.cluster = await Cluster.open(self)
            return self.cluster

    async def _wait_until_running(self, cluster: Cluster, name: str) -> ClusterState:
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
            cluster.lease.doubt()
            raise SandboxLost(f"{name} ended before it was ready: {state.ended}")
        return state

    def _require_class(self, name: str, state: ClusterState) -> None:
        """Check that the pod has the profile's RuntimeClass: who gave it may have another.

        Raises:
            SandboxUnavailable: it has another one.
        """
        wanted = self.settings.pods.runtime_class
        if state.runtime_class != wanted:
            raise SandboxUnavailable(
                f"{name}: its pod has the RuntimeClass {state.runtime_class or '(none)'}, and "
                f"kubernetes.sandboxes.runtime_class is {wanted}; check what changes pods in "
                f"{self.settings.namespace}: admission webhooks, agent-sandbox's pools"
            )

    def _compare_image(self, state: ClusterState) -> None:
        """Warn if nodes resolved the image's tag to different images."""
        self._image_id = self._image_id or state.image_id
        if state.image_id not in ("", self._image_id):
            _log.warning(
                "the image %s was %s at first and is %s now: its tag was moved during the run, or "
                "nodes hold different ones; name it by digest",
                self.settings.image, self._image_id, state.image_id,
            )  # fmt: skip
            self._image_id = state.image_id


async def _delete_quietly(cluster: Cluster, name: str) -> None:
    """Delete without raising: the original error matters more, and the lease owns the rest."""
    with contextlib.suppress(SandboxError):
        await cluster.delete(name)


class KubernetesSandbox(SandboxClient):
    """A sandbox in a pod; calls in progress fail at once when the cluster removes the pod.

    When a call's connection breaks, the call waits until the cluster reports how the pod ended: a
    program that made the kernel kill the pod is responsible for the loss.
    """

    def __init__(
        self, name: str, limits: Limits, token: Token, state: ClusterState, cluster: Cluster
    ) -> None:
        host = f"[{state.address}]" if ":" in str(state.address) else state.address
        super().__init__(name, limits, token, f"http://{host}:{SANDBOXD_PORT}")
        self.cluster = cluster
        self._address = str(state.address)
        self._is_closing = False
        self._unsubscribe = cluster.watch.subscribe(name, self._on_state)

    async def wait_for_server(self, within_s: float) -> None:
        """Retry until sandboxd answers: a container is Running shortly before it listens.

        Raises:
            SandboxTimeout: sandboxd did not answer in time.
            SandboxLost: the pod ended.
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
        """Delete the sandbox; its pod is gone when this returns.

        Raises:
            SandboxTimeout: the pod did not end in time; its lease or deadline will end it.
        """
        self._is_closing = True
        await self.close_connections()
        try:
            if await self.cluster.delete(self.name):
                await self.cluster.gone(self.name, _END_WITHIN_S)
        finally:
            self._unsubscribe()

    async def abandon(self) -> None:
        """Close the connections to a pod that never served, without waiting for its end."""
        self._is_closing = True
        await self.close_connections()
        self._unsubscribe()

    async def _run(self, request: RunRequest) -> ExecResult:
        return await self._explained(super()._run(request))

    async def _ask(
        self, method: str, path: str, query: Mapping[str, Any], content: bytes | None = None
    ) -> bytes:
        return await self._explained(super()._ask(method, path, query, content))

    async def _explained(self, call: Awaitable[T]) -> T:
        """Await a call to sandboxd; if the sandbox is lost, raise the cluster's reason.

        Raises:
            SandboxLost: the cluster's reason, and whether a program in the pod ended it.
        """
        try:
            return await call
        except SandboxLost as error:
            if error.by_program or self._is_closing:
                raise
            end = await self.cluster.end_of_pod(self.name, self._address, _REASON_WITHIN_S)
            if end is None:
                raise
            raise SandboxLost(f"{self.name}: {end.ended}", by_program=end.by_program) from error

    def _on_state(self, state: ClusterState) -> None:
        state = self.cluster.of_pod(state, self._address)
        if state.ended:
            self.mark_lost(state.ended, by_program=state.by_program)
            if not self._is_closing and not state.by_program:
                self.cluster.lease.doubt()

"""The pool of sandboxes that a profile configures, on its own event loop.

Each rollout runs on a new event loop, but sandboxes are too expensive to start for each: they live
on the event loop of one thread, and borrowers on other loops wait for its results.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import threading
from collections.abc import AsyncGenerator, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self, TypeVar

from espalier.cluster.objects.names import labels_of_this_pod
from espalier.config import MOST_PROGRAM_S, KubernetesConfig, OwnSandboxConfig, SandboxConfig
from espalier.records.spans import measured
from espalier.sandbox.call_time import call_waits
from espalier.sandbox.kubernetes import KubernetesBackend
from espalier.sandbox.lent import LentSandbox
from espalier.sandbox.local import LocalBackend
from espalier.sandbox.pod import SandboxPodSettings
from espalier.sandbox.podman import PodmanBackend
from espalier.sandbox.pool import CLOSED, PoolSettings, SandboxPool
from espalier.sandbox.protocol import Backend, Limits, Sandbox, SandboxUnavailable

T = TypeVar("T")


class PoolThread:
    """A pool on the event loop of its own thread, opened and closed by `with`.

    Programs that judge an answer run in separate sandboxes, which never run a policy's programs:
    nothing that a borrower leaves in a sandbox can reach a judge. These sandboxes start with the
    first claim for judging.

    Args:
        backend: creates the sandboxes.
        settings: settings of the pool.
        num_judging: maximum number of sandboxes for judging, besides those of the pool.
    """

    def __init__(self, backend: Backend, settings: PoolSettings, num_judging: int = 1) -> None:
        self.pool = SandboxPool(backend, settings)
        few = {"size": num_judging, "low_water": 0, "high_water": num_judging}
        self._judging = SandboxPool(backend, settings.model_copy(update=few))
        self._backend = backend
        self._posting, self._is_closed = threading.Lock(), False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="espalier-sandboxes", daemon=True
        )

    def __enter__(self) -> Self:
        """Start the pool and wait for its first sandbox, so that a missing backend fails at once.

        Raises:
            SandboxError: no sandbox can be created.
        """
        self._thread.start()
        try:
            self.post(self._open()).result()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close every sandbox, including lent ones."""
        with self._posting:  # work posted after `_close` would not be awaited
            closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
            self._is_closed = True
        closing.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the pool's loop and return its result; cancellation is passed on."""
        return await asyncio.wrap_future(self.post(work))

    @asynccontextmanager
    async def claim(self, *, judging: bool = False) -> AsyncGenerator[Sandbox]:
        """Borrow a sandbox, on the pool's loop; it is reset afterwards.

        Waiting for the sandbox does not count against the environment call's time (`CallTime`), and
        programs are limited to the time that this call has left.

        Args:
            judging: borrow one of the sandboxes for judging.

        Raises:
            SandboxError: as `SandboxPool.claim`.
        """
        if self._is_closed:
            raise SandboxUnavailable(CLOSED)
        if judging and not self._judging.is_open:
            await self._judging.__aenter__()
        pool = self._judging if judging else self.pool
        async with AsyncExitStack() as loan:
            with call_waits(), measured("waiting"):
                sandbox = await loan.enter_async_context(pool.claim())
            yield LentSandbox(sandbox)

    def post(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Schedule `work` on the pool's loop without waiting.

        Raises:
            SandboxUnavailable: the pool is closed.
        """
        with self._posting:
            if self._is_closed:
                work.close()
                raise SandboxUnavailable(CLOSED)
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self) -> None:
        await self.pool.__aenter__()
        async with self.pool.claim():
            pass

    async def _close(self) -> None:
        for pool in (self.pool, self._judging):
            await pool.__aexit__(None, None, None)
        await self._backend.close()

        # wait for borrowers, whose sandboxes are closed by now, and cancel the late ones
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, late = await asyncio.wait(others, timeout=_END_WITHIN_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


_END_WITHIN_S = 3.0
_MIB = 2**20
_DISK_BYTES = 32 * _MIB
_OUTPUT_BYTES = 64 * 1024
"""Far more than the few hundred characters that a policy reads."""
_POLICIES_PER_JUDGE = 4
"""Policy sandboxes per judging sandbox: an episode runs several programs and is judged once."""
_CLAIM_WITHIN_S = 1800.0
"""How long an episode waits for a sandbox: long, because hundreds of episodes share a few. An
episode that gets none is lost, and is played again where episodes are compared."""


def sandbox_pool(
    config: SandboxConfig,
    cluster: KubernetesConfig,
    *,
    disk_bytes: int = _DISK_BYTES,
    links: Sequence[str] = (),
) -> PoolThread:
    """Return an unopened pool for short programs.

    Args:
        config: backend, number and limits of the sandboxes.
        cluster: settings of the cluster, for sandboxes in pods.
        disk_bytes: size of a workspace.
        links: folders of the workspace that local sandboxes link from their root folder; images of
            containers and pods have these links already.
    """
    settings = PoolSettings(
        size=config.size,
        low_water=min(1, config.size),
        high_water=config.size,
        max_uses=config.max_uses,
        claim_timeout_s=_CLAIM_WITHIN_S,
    )
    num_judging = math.ceil(config.size / _POLICIES_PER_JUDGE)
    return PoolThread(backend_for(config, cluster, disk_bytes, links), settings, num_judging)


def backend_for(
    config: SandboxConfig,
    cluster: KubernetesConfig,
    disk_bytes: int = _DISK_BYTES,
    links: Sequence[str] = (),
) -> Backend:
    """Return the backend that a profile configures; pods get the labels of this step's pod."""
    limits = Limits(
        memory_bytes=config.memory_mb * _MIB,
        disk_bytes=disk_bytes,
        output_bytes=_OUTPUT_BYTES,
        wall_s=MOST_PROGRAM_S,  # a run sets its own, shorter limit
    )
    if isinstance(config, OwnSandboxConfig):
        return config.make_backend(limits, links)
    match config.backend:
        case "local":
            return LocalBackend(limits=limits, packages=config.packages, preimport=(), links=links)
        case "podman":
            return PodmanBackend(image=config.image, limits=limits, preimport=())
        case "kubernetes":
            pods = SandboxPodSettings(
                image=config.image,
                namespace=cluster.sandbox_namespace,
                pods=cluster.sandboxes,
                labels={**cluster.labels, **labels_of_this_pod(os.environ)},
            )
            return KubernetesBackend(
                settings=pods,
                run_id=f"episodes-{secrets.token_hex(4)}",
                limits=limits,
                preimport=(),
                kubeconfig=config.kubeconfig,
                warm_pods=config.size,
            )

"""The pool of sandboxes that a profile asks for, on its own event loop.

Each rollout runs on a new event loop, but sandboxes are too expensive to start as often: they live
on the loop of one thread, and borrowers on other loops wait for its results.
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
from espalier.config import MOST_PROGRAM_S, KubernetesConfig, SandboxConfig
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

    Programs that judge an answer have sandboxes of their own, in which no program of a policy ever
    ran: whatever a borrower might leave in a sandbox, no judge finds it. They are started when the
    first judge asks.

    Args:
        backend: creates the sandboxes.
        settings: of the pool.
        num_judging: most sandboxes for judges, besides those of the pool.
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
        """Start, and wait for the first sandbox so that a missing backend fails at once.

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
        """Close every sandbox, lent ones as well."""
        with self._posting:  # what comes after this would not be waited for
            closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
            self._is_closed = True
        closing.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the pool's loop and return its result; cancelling this cancels it there."""
        return await asyncio.wrap_future(self.post(work))

    @asynccontextmanager
    async def claim(self, *, judging: bool = False) -> AsyncGenerator[Sandbox]:
        """Borrow a sandbox, on the pool's loop; it is reset afterwards.

        The wait does not count as time of the environment's call that borrows (`CallTime`), and
        programs run no longer than that call has time for.

        Args:
            judging: borrow one of those for judges.

        Raises:
            SandboxError: see `SandboxPool.claim`.
        """
        if self._is_closed:
            raise SandboxUnavailable(CLOSED)
        if judging and not self._judging.is_open:
            await self._judging.__aenter__()
        pool = self._judging if judging else self.pool
        async with AsyncExitStack() as loan:
            with call_waits():
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
        await _end_others()


async def _end_others() -> None:
    """Let borrowers end, whose sandboxes are closed, and cancel those that do not."""
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
"""A policy reads only a few hundred characters."""
_POLICIES_PER_JUDGE = 4
"""An episode runs programs several times and is judged once."""
_CLAIM_WITHIN_S = 1800.0
"""How long an episode waits for a sandbox: long, because hundreds of them share a few. An episode
that got none by then is lost, and where episodes are compared it is played again."""


def sandbox_pool(
    config: SandboxConfig,
    cluster: KubernetesConfig,
    *,
    disk_bytes: int = _DISK_BYTES,
    links: Sequence[str] = (),
) -> PoolThread:
    """A pool for short programs, not opened.

    Args:
        config: of the sandboxes.
        cluster: where pods are.
        disk_bytes: of a workspace.
        links: folders of the workspace that local sandboxes have in their root as well; those of
            containers and pods are in their image.
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
    """What makes the sandboxes; pods among them are labelled as the step that makes them."""
    limits = Limits(
        memory_bytes=config.memory_mb * _MIB,
        disk_bytes=disk_bytes,
        output_bytes=_OUTPUT_BYTES,
        wall_s=MOST_PROGRAM_S,  # a run sets its own, shorter limit
    )
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

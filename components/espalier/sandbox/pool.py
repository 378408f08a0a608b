"""A warm supply of sandboxes, one borrower at a time.

    claim    a ready sandbox, or the next that becomes ready
    release  reset and probe; then ready again, or closed: worn, polluted, lost
    refill   below the low-water mark new ones are started, up to the high one

Creates are tried again, after a pause that grows. What a borrower ran never is: a lost sandbox is
its episode's loss.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Self

from espalier.sandbox.errors import (
    SandboxError,
    SandboxLost,
    SandboxQuota,
    SandboxTimeout,
    SandboxUnavailable,
)
from espalier.sandbox.pool_metrics import PoolMetrics
from espalier.sandbox.pool_settings import PoolSettings
from espalier.sandbox.protocol import Backend, Sandbox
from espalier.sandbox.starting import Starter
from espalier.sandbox.warm import Preparation, WarmSandbox, make_warm

_CAUSES: dict[type[SandboxError], str] = {
    SandboxLost: "lost",
    SandboxQuota: "quota",
    SandboxTimeout: "timeout",
    SandboxUnavailable: "unavailable",
}


class SandboxPool:
    """Lends sandboxes of one backend; opened by `async with`, on the event loop that uses it.

    Args:
        backend: makes them.
        settings: how many, how long.
        prepare: what every borrower shall find in the workspace.
        jitter: from 0 to 1, of the pause after a failed create.
    """

    def __init__(
        self,
        backend: Backend,
        settings: PoolSettings,
        *,
        prepare: Preparation | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.metrics = PoolMetrics()
        self._settings = settings
        make = partial(make_warm, backend, prepare)
        self._starter = Starter(make, settings, jitter=jitter, on_end=self._started)
        self._ready: deque[WarmSandbox] = deque()
        self._waiting: deque[asyncio.Future[WarmSandbox]] = deque()
        self._existing: set[WarmSandbox] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_cleaning = 0
        self._is_refilling = True
        self._is_open = False

    async def __aenter__(self) -> Self:
        """Start the first sandboxes; claims need not wait until they are ready."""
        self._is_open = True
        self._refill()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all sandboxes, lent ones too."""
        self._is_open = False
        for waiter in self._waiting:
            waiter.cancel()
        await self._starter.close()
        while self._tasks:
            await asyncio.wait(self._tasks)
        slots = asyncio.Semaphore(self._settings.max_starting)

        async def close(warm: WarmSandbox) -> None:
            async with slots:
                await self._close(warm)

        await asyncio.gather(*map(close, tuple(self._existing)))
        self._ready.clear()

    @property
    def num_ready(self) -> int:
        """Sandboxes that a claim would get at once."""
        return len(self._ready)

    @property
    def num_existing(self) -> int:
        """Sandboxes that are ready, lent, being cleaned or closed, or being started."""
        return len(self._existing) + self._starter.in_flight

    @asynccontextmanager
    async def claim(self) -> AsyncIterator[Sandbox]:
        """Borrow a sandbox; what was done in it is gone when it is given back.

        Raises:
            SandboxTimeout: none became free in time; the message has the last failed create.
            SandboxUnavailable: none will ever be.
            SandboxLost: from the borrower's own calls, if this one was lost.
        """
        asked_s = time.monotonic()
        warm = await self._take()
        lent_s = time.monotonic()
        self.metrics.claim_s.append(lent_s - asked_s)
        warm.uses += 1
        after = self._clean
        try:
            yield warm.sandbox
        except (SandboxLost, SandboxTimeout) as error:
            self._count_failure(error)
            after = self._close
            raise
        finally:
            self.metrics.lent_s += time.monotonic() - lent_s
            self._keep(after(warm))

    async def _take(self) -> WarmSandbox:
        if self._ready:
            warm = self._ready.popleft()
            self._refill()
            return warm
        waiter: asyncio.Future[WarmSandbox] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._refill()
        try:
            async with asyncio.timeout(self._settings.claim_timeout_s):
                return await waiter
        except TimeoutError as error:
            self._give_back(waiter)
            self.metrics.failures["claim_timeout"] += 1
            raise SandboxTimeout(self._why_none()) from error
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise

    def _give_back(self, waiter: asyncio.Future[WarmSandbox]) -> None:
        """Nobody waits here any more; a sandbox may have come at that very moment."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._offer(waiter.result())

    def _why_none(self) -> str:
        settings = self._settings
        return (
            f"no sandbox became free within {settings.claim_timeout_s:g} s: "
            f"{len(self._existing)} of {settings.size} exist, {self._starter.in_flight} are "
            f"starting; last failure: {self._starter.failure}"
        )

    def _offer(self, warm: WarmSandbox) -> None:
        """Give a clean sandbox to who has waited longest, or keep it ready, or close it."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(warm)
                return
        if self._is_open and len(self._ready) < self._settings.high_water:
            self._ready.append(warm)
        else:
            self.metrics.retired["surplus"] += 1
            self._keep(self._close(warm))

    async def _clean(self, warm: WarmSandbox) -> None:
        if warm.uses >= self._settings.max_uses:
            self.metrics.retired["worn"] += 1
            await self._close(warm)
            return
        self._num_cleaning += 1
        try:
            left = await warm.clean()
        except SandboxError as error:
            self._count_failure(error)
            await self._close(warm)
            return
        finally:
            self._num_cleaning -= 1
        self.metrics.failures.update(f"polluted_{name}" for name in left)
        if left:
            await self._close(warm)
        else:
            self._offer(warm)

    async def _close(self, warm: WarmSandbox) -> None:
        try:
            await warm.sandbox.close()
        except SandboxError as error:
            self._count_failure(error)
        if warm in self._existing:
            self._existing.remove(warm)
            self.metrics.count_closed(warm.created_s)
        self._refill()

    def _refill(self) -> None:
        """Start what is missing: for those who wait, and between the water marks."""
        settings = self._settings
        coming = len(self._ready) + self._num_cleaning + self._starter.in_flight
        coming -= len(self._waiting)
        if coming < settings.low_water:
            self._is_refilling = True
        elif coming >= settings.high_water:
            self._is_refilling = False
        aim = settings.high_water if self._is_refilling else 0
        missing = min(aim - coming, settings.size - self.num_existing)
        if self._is_open and missing > 0:
            self._starter.start(missing)
        if self._starter.is_hopeless and not self._existing:
            self._disappoint()

    def _started(self, ended: WarmSandbox | SandboxError | None) -> None:
        """A create ended, or a pause."""
        if isinstance(ended, WarmSandbox):
            self._existing.add(ended)
            self.metrics.count_created(ended.created_s)
            self._offer(ended)
        elif ended is not None:
            self._count_failure(ended)
        self._refill()

    def _disappoint(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(SandboxUnavailable(str(self._starter.failure)))

    def _count_failure(self, error: SandboxError) -> None:
        self.metrics.failures[_CAUSES.get(type(error), "refused")] += 1

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the event loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)

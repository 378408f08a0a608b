"""A pool of warm sandboxes, each lent to one borrower at a time.

    claim    lend a ready sandbox, or the next one that becomes ready
    release  reset and probe the sandbox; keep it, or close it if worn, polluted or lost
    refill   with fewer than `low_water` ready, start new ones up to `high_water`

Creating a sandbox is retried after a growing pause. A borrower's command is never retried: a lost
sandbox ends its episode.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Self

from pydantic import BaseModel, Field, model_validator

from espalier.sandbox.protocol import (
    Backend,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxQuota,
    SandboxTimeout,
    SandboxUnavailable,
)
from espalier.sandbox.starting import Preparation, Starter, WarmSandbox, make_warm


class PoolSettings(BaseModel, frozen=True, extra="forbid"):
    """How many sandboxes a pool keeps, and how long it uses each.

    Attributes:
        size: maximum number of sandboxes, lent ones included.
        low_water: with fewer ready sandboxes than this, new ones are started...
        high_water: ...until this many are ready; surplus ones are closed.
        max_uses: number of borrowers after which a sandbox is replaced.
        max_starting: maximum number of parallel creates, and of parallel closes at the end; each
            costs a cluster's API server a request.
        claim_timeout_s: how long a borrower waits.
        backoff_s: pause after a failed create, doubled with each further failure...
        longest_backoff_s: ...up to this.
    """

    size: int = Field(default=16, ge=1)
    low_water: int = Field(default=2, ge=0)
    high_water: int = Field(default=8, ge=1)
    max_uses: int = Field(default=64, ge=1)
    max_starting: int = Field(default=4, ge=1)
    claim_timeout_s: float = Field(default=120.0, gt=0)
    backoff_s: float = Field(default=0.5, gt=0)
    longest_backoff_s: float = Field(default=30.0, gt=0)

    @model_validator(mode="after")
    def _marks_are_in_order(self) -> Self:
        if not self.low_water <= self.high_water <= self.size:
            raise ValueError(
                f"low_water={self.low_water}, high_water={self.high_water} and size={self.size} "
                "must be in ascending order"
            )
        return self


@dataclass(slots=True)
class PoolMetrics:
    """Counters of a pool since it was opened.

    Attributes:
        claim_s: how long each served claim waited.
        lent_s: total seconds of ended loans.
        failures: failed creates, loans and resets by cause; `claim_timeout` counts borrowers that
            got no sandbox.
        retired: sandboxes closed without a failure, by cause: worn, surplus.
        created: sandboxes that became ready.
        closed: created sandboxes that were closed since, for any reason.
    """

    claim_s: list[float] = field(default_factory=list)
    lent_s: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    retired: Counter[str] = field(default_factory=Counter)
    created: int = 0
    closed: int = 0
    _closed_s: float = 0.0
    _alive_since_s: list[float] = field(default_factory=list)

    def count_created(self, at_s: float) -> None:
        """Count a sandbox that became ready at `at_s` of the monotonic clock."""
        self.created += 1
        self._alive_since_s.append(at_s)

    def count_closed(self, created_s: float) -> None:
        """Count the close of the sandbox that became ready at `created_s`."""
        self.closed += 1
        self._alive_since_s.remove(created_s)
        self._closed_s += time.monotonic() - created_s

    @property
    def utilisation(self) -> float:
        """Share of the sandboxes' lifetime in which they were lent, 0-1."""
        now_s = time.monotonic()
        existed_s = self._closed_s + sum(now_s - since_s for since_s in self._alive_since_s)
        return self.lent_s / existed_s if existed_s else 0.0

    def claim_quantile_s(self, share: float) -> float:
        """Return a quantile of the claims' waiting time; 0 before the first claim."""
        waits = sorted(self.claim_s)
        return waits[min(int(share * len(waits)), len(waits) - 1)] if waits else 0.0

    def as_dict(self) -> dict[str, float]:
        """Return flat figures for a tracker."""
        return {
            "sandbox/claims": len(self.claim_s),
            "sandbox/claim_p50_s": self.claim_quantile_s(0.5),
            "sandbox/claim_p99_s": self.claim_quantile_s(0.99),
            "sandbox/utilisation": self.utilisation,
            "sandbox/created": self.created,
            "sandbox/closed": self.closed,
            **{f"sandbox/failures/{cause}": n for cause, n in sorted(self.failures.items())},
            **{f"sandbox/retired/{cause}": n for cause, n in sorted(self.retired.items())},
        }


class PoolState(NamedTuple):
    """The number of a pool's sandboxes in each state, at one moment."""

    size: int
    free: int
    lent: int
    cleaning: int
    starting: int
    waiting: int
    """Borrowers that wait for a sandbox."""


_open_pools: weakref.WeakSet[SandboxPool] = weakref.WeakSet()
_metrics: list[PoolMetrics] = []
"""Counters of every pool that this process opened; those of closed pools are kept."""


def pool_states() -> list[PoolState]:
    """Return the state of every open pool of this process; callable from any thread."""
    return [pool.state for pool in tuple(_open_pools)]


def pool_metrics() -> list[PoolMetrics]:
    """Return the counters of every pool that this process opened; callable from any thread."""
    return list(_metrics)


CLOSED = "the pool of sandboxes is closed"
_CAUSES: dict[type[SandboxError], str] = {
    SandboxLost: "lost",
    SandboxQuota: "quota",
    SandboxTimeout: "timeout",
    SandboxUnavailable: "unavailable",
}


class SandboxPool:
    """Lends sandboxes of one backend; opened by `async with`, on the event loop that uses it.

    Args:
        backend: creates the sandboxes.
        settings: settings of the pool.
        prepare: fills the workspace that every borrower finds.
        jitter: random number from 0 to 1 for the pause after a failed create.
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
        self._starter = Starter(make, settings, jitter=jitter, on_end=self._on_create_ended)
        self._ready: deque[WarmSandbox] = deque()
        self._waiting: deque[asyncio.Future[WarmSandbox]] = deque()
        self._existing: set[WarmSandbox] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_cleaning = self._num_lent = 0
        self._is_refilling = True
        self._is_open = False

    async def __aenter__(self) -> Self:
        """Start the first sandboxes, without waiting until they are ready."""
        self._is_open = True
        _open_pools.add(self)
        _metrics.append(self.metrics)
        self._refill()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all sandboxes, including lent ones."""
        self._is_open = False
        _open_pools.discard(self)
        self._fail_waiters(CLOSED)
        await self._starter.close()
        while self._tasks:
            await asyncio.wait(self._tasks)
        slots = asyncio.Semaphore(self._settings.max_starting)

        async def close(warm: WarmSandbox) -> None:
            async with slots:
                await self._close(warm)

        await asyncio.gather(*map(close, tuple(self._existing)))
        while self._tasks:  # tasks of borrowers whose sandboxes were just closed
            await asyncio.wait(self._tasks)
        self._ready.clear()

    @property
    def is_open(self) -> bool:
        """Whether sandboxes can be claimed."""
        return self._is_open

    @property
    def num_ready(self) -> int:
        """Number of sandboxes ready to be claimed."""
        return len(self._ready)

    @property
    def num_existing(self) -> int:
        """Number of sandboxes that are ready, lent, being reset, closed or started."""
        return len(self._existing) + self._starter.in_flight

    @property
    def state(self) -> PoolState:
        """Approximate number of sandboxes in each state; readable from any thread."""
        return PoolState(
            size=self._settings.size,
            free=len(self._ready),
            lent=self._num_lent,
            cleaning=self._num_cleaning,
            starting=self._starter.in_flight,
            waiting=len(self._waiting),
        )

    @asynccontextmanager
    async def claim(self) -> AsyncIterator[Sandbox]:
        """Borrow a sandbox; it is reset afterwards.

        Raises:
            SandboxTimeout: no sandbox became free in time; the message has the last failure.
            SandboxUnavailable: the backend cannot create sandboxes, or the pool is closed.
            SandboxLost: raised by the borrower's own calls if the sandbox was lost.
        """
        asked_s = time.monotonic()
        warm = await self._take()
        lent_s = time.monotonic()
        self.metrics.claim_s.append(lent_s - asked_s)
        warm.uses += 1
        self._num_lent += 1
        after = self._clean
        try:
            yield warm.sandbox
        except (SandboxLost, SandboxTimeout) as error:
            self._count_failure(error)
            after = self._close
            raise
        finally:
            self._num_lent -= 1
            self.metrics.lent_s += time.monotonic() - lent_s
            if warm in self._existing:  # else it was closed together with the pool
                self._run_in_background(after(warm))

    async def _take(self) -> WarmSandbox:
        if not self._is_open:
            raise SandboxUnavailable(CLOSED)
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
            raise SandboxTimeout(
                f"no sandbox became free within {self._settings.claim_timeout_s:g} s: "
                f"{len(self._existing)} of {self._settings.size} exist, "
                f"{self._starter.in_flight} are starting; last failure: {self._starter.failure}"
            ) from error
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise

    def _give_back(self, waiter: asyncio.Future[WarmSandbox]) -> None:
        """Withdraw a waiter; if it was given a sandbox just now, offer that to others."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._offer(waiter.result())

    def _offer(self, warm: WarmSandbox) -> None:
        """Give a clean sandbox to the longest waiter, or keep it ready, or close it."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(warm)
                return
        if self._is_open and len(self._ready) < self._settings.high_water:
            self._ready.append(warm)
        else:
            self.metrics.retired["surplus"] += 1
            self._run_in_background(self._close(warm))

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
        """Start missing sandboxes: for waiters, and up to the high-water mark."""
        settings = self._settings
        supply = len(self._ready) + self._num_cleaning + self._starter.in_flight
        supply -= len(self._waiting)
        if supply < settings.low_water:
            self._is_refilling = True
        elif supply >= settings.high_water:
            self._is_refilling = False
        aim = settings.high_water if self._is_refilling else 0
        missing = min(aim - supply, settings.size - self.num_existing)
        if self._is_open and missing > 0:
            self._starter.start(missing)
        if self._starter.is_unavailable and not self._existing:
            self._fail_waiters(str(self._starter.failure))

    def _on_create_ended(self, ended: WarmSandbox | SandboxError | None) -> None:
        """Handle the end of a create, or of a pause (None)."""
        if isinstance(ended, WarmSandbox):
            self._existing.add(ended)
            self.metrics.count_created(ended.created_s)
            self._offer(ended)
        elif ended is not None:
            self._count_failure(ended)
        self._refill()

    def _fail_waiters(self, cause: str) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(SandboxUnavailable(cause))

    def _count_failure(self, error: SandboxError) -> None:
        self.metrics.failures[_CAUSES.get(type(error), "refused")] += 1

    def _run_in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the event loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)

"""Starting sandboxes for a pool: few at once, and after a failure not at once again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from espalier.sandbox.errors import SandboxError, SandboxUnavailable
from espalier.sandbox.pool_settings import PoolSettings
from espalier.sandbox.warm import WarmSandbox


class Starter:
    """Creates in flight, and the pause that failures impose.

    Args:
        make: one sandbox.
        settings: how many at once, and how long the pause.
        jitter: from 0 to 1, of a pause: the pools of a cluster must not come back in step.
        on_end: called with each sandbox, or with why there is none.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[WarmSandbox]],
        settings: PoolSettings,
        *,
        jitter: Callable[[], float],
        on_end: Callable[[WarmSandbox | SandboxError | None], None],
    ) -> None:
        self.failure: SandboxError | None = None
        self._make = make
        self._settings = settings
        self._jitter = jitter
        self._on_end = on_end
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures_in_row = 0
        self._pause: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """Creates that have not ended."""
        return len(self._tasks)

    @property
    def is_hopeless(self) -> bool:
        """Whether this backend can give none, now or later."""
        return isinstance(self.failure, SandboxUnavailable)

    def start(self, number: int) -> None:
        """Start so many more, as far as may be started now."""
        if self._pause is not None or self.is_hopeless:
            return
        most = 1 if self._failures_in_row else self._settings.max_starting
        for _ in range(min(number, most - self.in_flight)):
            task = asyncio.create_task(self._create())
            self._tasks.add(task)

    async def close(self) -> None:
        """Start none any more, and wait for those in flight: half a pod is still a pod."""
        if self._pause is not None:
            self._pause.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _create(self) -> None:
        ended: WarmSandbox | SandboxError
        current = asyncio.current_task()
        assert current is not None
        try:
            ended = await self._make()
        except SandboxError as error:
            ended = self.failure = error
            self._failures_in_row += 1
            self._wait()
        else:
            self.failure, self._failures_in_row = None, 0
        finally:
            self._tasks.remove(current)
        self._on_end(ended)

    def _wait(self) -> None:
        """Pause, each time twice as long, somewhere in the upper half of that."""
        if self._pause is not None:
            return
        longest = self._settings.backoff_s * 2.0 ** (self._failures_in_row - 1)
        pause_s = min(longest, self._settings.longest_backoff_s) * (1 + self._jitter()) / 2
        self._pause = asyncio.get_running_loop().call_later(pause_s, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._on_end(None)

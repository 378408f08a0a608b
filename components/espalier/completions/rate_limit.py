"""At most so many requests and tokens a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

_MINUTE_S = 60.0

Sleep = Callable[[float], Awaitable[None]]


class RateLimit:
    """Two buckets that fill by the minute; a request waits until both hold enough."""

    def __init__(
        self,
        requests_per_minute: int,
        tokens_per_minute: int,
        *,
        clock: Callable[[], float],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Start with full buckets.

        Args:
            requests_per_minute: 0 sets no limit.
            tokens_per_minute: 0 sets no limit; prompt and longest possible answer count.
            clock: seconds, never running backwards.
            sleep: how time is spent.
        """
        self._buckets = [
            _Bucket(limit, clock()) for limit in (requests_per_minute, tokens_per_minute)
        ]
        self._clock = clock
        self._sleep = sleep
        self._turn = asyncio.Lock()

    async def acquire(self, tokens: int) -> None:
        """Wait for one request of `tokens`; first come, first served."""
        async with self._turn:
            while wait_s := self._wait_s(tokens):
                await self._sleep(wait_s)
            for bucket, amount in zip(self._buckets, (1, tokens), strict=True):
                bucket.take(amount)

    def _wait_s(self, tokens: int) -> float:
        now = self._clock()
        waits = [b.wait_s(a, now) for b, a in zip(self._buckets, (1, tokens), strict=True)]
        return max(waits)


class _Bucket:
    def __init__(self, per_minute: int, now: float) -> None:
        self._per_minute = per_minute
        self._level = float(per_minute)
        self._filled_at = now

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` is there; more than the bucket holds waits for a full one."""
        if not self._per_minute:
            return 0.0
        per_second = self._per_minute / _MINUTE_S
        filled = self._level + (now - self._filled_at) * per_second
        self._level, self._filled_at = min(float(self._per_minute), filled), now
        missing = min(amount, self._per_minute) - self._level
        # below a millisecond is rounding: waiting for it could go on for ever
        return missing / per_second if missing > per_second / 1000 else 0.0

    def take(self, amount: float) -> None:
        self._level -= amount

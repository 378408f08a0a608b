"""What a run says, on its way to the client: capped, and no faster than the client reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from sandboxd.pipes import arriving
from sandboxd.wire import Killer, output_frame

_WAITING_FRAMES = 16
FLOOD_BYTES = 64 * 2**20
"""Beyond the cap: a program that goes on writing is drained until here, then killed."""


class Output:
    """Frames of one run, between those who read its pipes and the client."""

    def __init__(self, cap_bytes: int, kill: Callable[[Killer], None]) -> None:
        self._left = cap_bytes
        self._kill = kill
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING_FRAMES)
        self._abandoned = self._is_over = False
        self.dropped_bytes = 0

    @property
    def truncated(self) -> bool:
        """Whether the client did not get all of it."""
        return self.dropped_bytes > 0

    async def take(self, stream: str, data: bytes) -> None:
        """Pass on what the cap leaves room for; waits while the client does not read."""
        kept, dropped = data[: self._left], len(data) - min(len(data), self._left)
        self._left -= len(kept)
        self.dropped_bytes += dropped
        if dropped and self.dropped_bytes > FLOOD_BYTES:
            self._kill("output")
        if kept:
            await self.put(output_frame(stream, kept))

    async def put(self, frame: bytes | None) -> None:
        """Pass on a whole frame; none is the end."""
        self._is_over = frame is None
        if not self._abandoned:
            await self._queue.put(frame)

    def abandon(self) -> None:
        """Nobody reads any more: end the run, forget what waits, take what comes unheard."""
        self._abandoned = True
        if not self._is_over:
            self._kill("closed")
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                self._queue.get_nowait()

    async def frames(self) -> AsyncIterator[bytes]:
        """Frames as they come, until the end."""
        while (frame := await self._queue.get()) is not None:
            yield frame


async def pump(descriptor: int, stream: str, output: Output, stop: asyncio.Future[None]) -> None:
    """Pass on what comes over a pipe."""
    async for data in arriving(descriptor, stop):
        await output.take(stream, data)

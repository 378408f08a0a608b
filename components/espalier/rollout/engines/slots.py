"""Slots of an engine, handed out first come, first served."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

Prompt = tuple[int, ...]


class Slots:
    """A number of slots, and the sessions that wait for one."""

    def __init__(self, count: int) -> None:
        self._free = list(reversed(range(count)))
        self._count = count
        self._queue: deque[asyncio.Future[int]] = deque()
        self._wanted: Counter[Prompt] = Counter()
        self._is_paused = False
        self._all_free = asyncio.Event()

    def is_wanted(self, prompt: Prompt) -> bool:
        """Whether a session waits that will begin with `prompt`."""
        return prompt in self._wanted

    async def take(self, prompt: Prompt) -> int:
        """A slot for a session that begins with `prompt`, as soon as it is this one's turn."""
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        self._wanted[prompt] += 1
        self._hand_out()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.give_back(place.result())
            raise
        finally:
            self._wanted[prompt] -= 1
            if not self._wanted[prompt]:
                del self._wanted[prompt]

    def give_back(self, slot: int) -> None:
        """The next in the queue takes it."""
        self._free.append(slot)
        self._hand_out()
        if len(self._free) == self._count:
            self._all_free.set()

    async def pause(self) -> None:
        """Hand nothing out any more, and wait until every slot was given back."""
        self._is_paused = True
        if len(self._free) < self._count:
            self._all_free.clear()
            await self._all_free.wait()

    def resume(self) -> None:
        """Hand slots out again."""
        self._is_paused = False
        self._hand_out()

    def fail(self, error: BaseException) -> None:
        """Nobody who waits will be served."""
        for place in self._queue:
            if not place.done():
                place.set_exception(error)
        self._queue.clear()

    def _hand_out(self) -> None:
        while self._queue and self._free and not self._is_paused:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(self._free.pop())

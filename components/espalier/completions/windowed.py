"""Many coroutines, a bounded number of them at a time, results in the order of their inputs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


async def in_order(
    work: Callable[[ItemT], Coroutine[Any, Any, ResultT]], items: Iterable[ItemT], *, in_flight: int
) -> AsyncGenerator[ResultT]:
    """`work` of every item, with at most `in_flight` of them begun and not yet handed on.

    Items are drawn as they are needed, so that a stream of any length takes constant memory. An
    error ends everything: what is in flight is cancelled.
    """
    window: deque[asyncio.Task[ResultT]] = deque()
    try:
        for item in items:
            window.append(asyncio.create_task(work(item)))
            if len(window) >= in_flight:
                yield await window.popleft()
        while window:
            yield await window.popleft()
    finally:
        for task in window:
            task.cancel()
        await asyncio.gather(*window, return_exceptions=True)

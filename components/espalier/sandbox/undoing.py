"""What was begun and not finished is undone, whether an error ended it or a cancellation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager


@asynccontextmanager
async def undone_on_failure(*undo: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Call `undo`, one after the other, where the block does not come to its end.

    What ended the block goes on its way afterwards.
    """
    async with AsyncExitStack() as stack:
        for step in reversed(undo):
            stack.push_async_callback(step)
        yield
        stack.pop_all()

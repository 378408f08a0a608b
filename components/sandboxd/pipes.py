"""Reading pipes as they fill."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

_CHUNK_BYTES = 64 * 1024
_CHUNKS_OF_A_FULL_PIPE = 17
"""A pipe can be made to hold 1 MiB."""


async def arriving(
    descriptor: int, stop: asyncio.Future[None] | None = None
) -> AsyncIterator[bytes]:
    """What comes until the end of a pipe; or until the stop, and then what it still holds."""
    while await _readable(descriptor, stop):
        data = os.read(descriptor, _CHUNK_BYTES)
        if not data:
            return
        yield data
    with contextlib.suppress(BlockingIOError):
        for _ in range(_CHUNKS_OF_A_FULL_PIPE):
            if data := os.read(descriptor, _CHUNK_BYTES):
                yield data


async def _readable(descriptor: int, stop: asyncio.Future[None] | None) -> bool:
    """Wait for data or the end of a pipe; false if the stop came first."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake(*_: object) -> None:
        if not woken.done():
            woken.set_result(None)

    loop.add_reader(descriptor, wake)
    if stop is not None:
        stop.add_done_callback(wake)
    try:
        await woken
    finally:
        loop.remove_reader(descriptor)
        if stop is not None:
            stop.remove_done_callback(wake)
    return stop is None or not stop.done()

"""All answers of a request side by side, as one stream of pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from espalier.serving.choice import ChoiceReader, Order, Piece
from espalier.serving.engine_thread import EngineThread
from espalier.serving.growing_text import Decodes


class Event(NamedTuple):
    """A piece of the answer of that number."""

    number: int
    piece: Piece


async def write_all(
    orders: Sequence[Order], engine: EngineThread, tokenizer: Decodes
) -> AsyncGenerator[Event]:
    """The pieces of every answer as they come; each ends with one that has a finish reason.

    Leaving the iteration early ends the writing.

    Raises:
        EngineError: the engine broke.
    """
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    writers = [
        asyncio.create_task(_write(number, order, engine, tokenizer, events))
        for number, order in enumerate(orders)
    ]
    try:
        for _ in writers:
            while (event := await events.get()) is not None:
                yield event
        await asyncio.gather(*writers)
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)


async def _write(
    number: int,
    order: Order,
    engine: EngineThread,
    tokenizer: Decodes,
    events: asyncio.Queue[Event | None],
) -> None:
    """Ends with None among the events, however it ends."""
    reader = ChoiceReader(order, tokenizer)
    try:
        async with aclosing(engine.write(order)) as written:
            async for tokens in written:
                piece = reader.read(tokens)
                events.put_nowait(Event(number, piece))
                if piece.finish_reason is not None:
                    return
    finally:
        events.put_nowait(None)

"""An engine in a thread with its own event loop.

A step over a long prompt takes seconds; meanwhile the cluster's probes must be answered.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from typing import TypeAlias

from espalier.records import EngineError
from espalier.rollout.engines.engine import Completion, Engine
from espalier.serving.choice import SamplingOrder

_PIECE_S = 0.03
"""Approximate seconds between two pieces of a streamed answer: where a token takes a millisecond,
handing over each token separately would cost more than sampling it."""
_MAX_PIECE = 16

_HandOver: TypeAlias = Callable[[Completion | None], None]


class EngineThread:
    """An engine in its own thread that samples answers for the caller's event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None
        self._writers: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start the thread; return once answers can be sampled.

        Raises:
            EngineError: the engine failed to start.
        """
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise EngineError(f"the engine did not start: {self._failure}") from self._failure

    def stop(self) -> None:
        """Cancel all sampling, and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    @property
    def failure(self) -> BaseException | None:
        """The error that broke the engine, or None; a broken engine samples nothing more."""
        return self._failure

    async def write(self, order: SamplingOrder) -> AsyncGenerator[Completion]:
        """Sample an answer's tokens: all at once, or in pieces where it is streamed.

        Leaving the iteration early frees the row.

        Raises:
            EngineError: the engine broke.
        """
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[Completion | None] = asyncio.Queue()

        def hand_over(piece: Completion | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        writing = asyncio.run_coroutine_threadsafe(self._write(order, hand_over), self._loop)
        writing.add_done_callback(self._note_failure)
        writing.add_done_callback(lambda _: hand_over(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            if writing.cancelled():
                raise EngineError("the engine was stopped")
            if (failure := writing.exception()) is not None:
                raise EngineError(f"the engine broke: {failure}") from failure
        finally:
            writing.cancel()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._started.set()

    async def _serve(self) -> None:
        async with self._engine.serving():
            self._started.set()
            await self._stop.wait()
            for writer in self._writers:
                writer.cancel()
            await asyncio.gather(*self._writers, return_exceptions=True)

    async def _write(self, order: SamplingOrder, hand_over: _HandOver) -> None:
        writer = asyncio.current_task()
        assert writer is not None, "this coroutine runs as a task"
        self._writers.add(writer)
        writer.add_done_callback(self._writers.discard)
        session = await self._engine.open(order.prompt_ids, order.sampling)
        try:
            left = order.max_tokens
            in_pieces = order.in_pieces or order.is_watched
            size = 1 if in_pieces else left
            while left:
                began_s = time.perf_counter()
                written = await session.sample(max_tokens=min(size, left))
                hand_over(written)
                if written.stopped and not order.ignores_end:
                    return
                left -= len(written.token_ids)
                if in_pieces:
                    token_s = (time.perf_counter() - began_s) / len(written.token_ids)
                    size = max(1, min(_MAX_PIECE, int(_PIECE_S / token_s)))
        finally:
            session.close()

    def _note_failure(self, writing: Future[None]) -> None:
        if not writing.cancelled() and (error := writing.exception()) is not None:
            self._failure = error

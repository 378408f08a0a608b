"""What samples, an engine or the episodes of an agent, in a thread with its own event loop.

A step over a long prompt takes seconds; meanwhile the cluster's probes must be answered.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeAlias, TypeVar

from espalier.records import EngineError
from espalier.rollout.engines.engine import Completion, Engine
from espalier.serving.choice import SamplingOrder

_PIECE_S = 0.03
"""Approximate seconds between two pieces of a streamed answer: where a token takes a millisecond,
handing over each token separately would cost more than sampling it."""
_MAX_PIECE = 16

_HandOver: TypeAlias = Callable[[Completion | None], None]

Opened = TypeVar("Opened")
T = TypeVar("T")


class ServingThread(Generic[Opened]):
    """A thread whose event loop works for another one, inside a context of its own."""

    def __init__(self, serving: Callable[[], AbstractAsyncContextManager[Opened]]) -> None:
        """Prepare the thread.

        Args:
            serving: the context in which everything runs; its value is the argument of `submit`'s
                work.
        """
        self._serving = serving
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None
        self._opened: Opened | None = None
        self._running: set[asyncio.Task[Any]] = set()

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
        """Cancel all work, and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    @property
    def failure(self) -> BaseException | None:
        """The error that broke the engine, or None; a broken engine samples nothing more."""
        return self._failure

    def submit(self, work: Callable[[Opened], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine function in the thread; to cancel the future cancels it."""
        return asyncio.run_coroutine_threadsafe(self._tracked(work), self._loop)

    async def _tracked(self, work: Callable[[Opened], Coroutine[Any, Any, T]]) -> T:
        task = asyncio.current_task()
        assert task is not None, "this coroutine runs as a task"
        assert self._opened is not None, "the thread was started"
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await work(self._opened)

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
        async with self._serving() as self._opened:
            self._started.set()
            await self._stop.wait()
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)


class EngineThread(ServingThread[Engine]):
    """An engine in its own thread that samples answers for the caller's event loop."""

    def __init__(self, engine: Engine) -> None:
        @asynccontextmanager
        async def serving() -> AsyncGenerator[Engine]:
            async with engine.serving():
                yield engine

        super().__init__(serving)

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

        writing = self.submit(lambda engine: _write(engine, order, hand_over))
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

    def _note_failure(self, writing: Future[None]) -> None:
        if not writing.cancelled() and (error := writing.exception()) is not None:
            self._failure = error


async def _write(engine: Engine, order: SamplingOrder, hand_over: _HandOver) -> None:
    session = await engine.open(order.prompt_ids, order.sampling)
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

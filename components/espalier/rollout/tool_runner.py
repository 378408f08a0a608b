"""Calling an environment so that a slow one keeps nobody waiting but its own episode."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


class CallTimeoutError(Exception):
    """A call took longer than it may; what it was made on may be at it for ever."""


class ToolRunner:
    """Makes calls as coroutines, in threads, or right here, within their time."""

    def __init__(self, *, workers: int, timeout_s: float) -> None:
        self._workers = workers
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(max(1, workers))

    async def run(
        self, call: Callable[P, T | Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The result of `call`.

        A coroutine function waits on the event loop. Any other runs in a thread of its own,
        `workers` of them at a time; with no workers it runs here, and has no time limit. The time
        counts from when the call begins. Whatever the call raises is raised.

        Raises:
            CallTimeoutError: the time is up.
        """
        if inspect.iscoroutinefunction(call):
            return await self._within_time(call(*args, **kwargs))
        plain = cast("Callable[P, T]", call)
        if not self._workers:
            return plain(*args, **kwargs)
        async with self._free:
            return await self._within_time(_in_thread(lambda: plain(*args, **kwargs)))

    async def _within_time(self, result: Awaitable[T]) -> T:
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                return await result
        except TimeoutError as error:
            if limit.expired():
                raise CallTimeoutError from error
            raise


def _in_thread(call: Callable[[], T]) -> Awaitable[T]:
    """The result of `call` from a daemon thread, which keeps no process alive if it is stuck.

    A pool would not do: its threads are waited for at the end, and a stuck one is a worker less.
    """
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def work() -> None:
        with _Handover(result):
            result.set_result(call())

    threading.Thread(target=work, name="espalier-tool", daemon=True).start()
    return asyncio.wrap_future(result)


class _Handover(Generic[T]):
    """Hands an exception of its block to whoever waits for the result."""

    def __init__(self, result: Future[T]) -> None:
        self._result = result

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is not None:
            self._result.set_exception(error)
        return True

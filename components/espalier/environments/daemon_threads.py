"""Calls in threads of their own, which the interpreter does not wait for at its exit."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


def in_thread(call: Callable[[], T]) -> Awaitable[T]:
    """Await `call` in a daemon thread that has the caller's context variables.

    A thread pool would not do: the interpreter joins its threads at exit, and a stuck call would
    occupy a worker forever.
    """
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def work() -> None:
        with _ForwardsErrors(result):
            result.set_result(call())

    context = contextvars.copy_context()
    threading.Thread(target=lambda: context.run(work), name="espalier-tool", daemon=True).start()
    return asyncio.wrap_future(result)


class _ForwardsErrors(Generic[T]):
    """Sets an exception of its block, of any kind, on the future."""

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

"""The time limit of one environment call, which pauses while a sandbox is awaited or in use.

    waiting for a sandbox    not counted; the pool limits how long a borrower waits
    programs in a sandbox    together at most the limit: a program that exceeds it is killed, and
                             its result tells the borrower
    everything else          the call is cancelled when it exceeds the limit

Whoever makes the call opens a `CallTime` around it. Borrowers find it in a context variable, which
follows the call into its thread and onto the pool's event loop, so tools need not pass it on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Self

_current: ContextVar[CallTime | None] = ContextVar("call_time", default=None)


def current_call() -> CallTime | None:
    """Return the time limit of the current call; None outside a call."""
    return _current.get()


def call_waits() -> AbstractContextManager[None]:
    """Return a context in which the current call, if any, counts as waiting for a sandbox."""
    call = current_call()
    return nullcontext() if call is None else call.waiting()


class CallTime:
    """The time limit of one call: an `asyncio.timeout` that waits and programs pause.

    Programs and waits may run on another thread than the context.
    """

    def __init__(self, limit_s: float) -> None:
        self._lock = threading.Lock()
        self._own_left_s = self._programs_left_s = limit_s
        self._counted_since_s: float | None = time.monotonic()
        """None while the call waits for a sandbox or runs a program in one."""
        self._apart = 0
        """Number of waits and programs in progress; a tool may have several."""
        self._timeout = asyncio.timeout(None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._token: Token[CallTime | None] | None = None

    async def __aenter__(self) -> Self:
        """Start counting."""
        self._loop = asyncio.get_running_loop()
        self._counted_since_s = time.monotonic()
        await self._timeout.__aenter__()
        self._token = _current.set(self)
        self._reschedule()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop counting.

        Raises:
            TimeoutError: the call exceeded its own time.
        """
        assert self._token is not None, "the context was entered"
        _current.reset(self._token)
        self._loop = None  # tasks that outlive the call must not reschedule
        await self._timeout.__aexit__(kind, error, traceback)

    @property
    def has_expired(self) -> bool:
        """Whether the call exceeded its own time."""
        return self._timeout.expired()

    @property
    def programs_left_s(self) -> float:
        """Seconds that programs of this call may still run in sandboxes; may be negative."""
        with self._lock:
            return self._programs_left_s

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        """Pause the limit within the block, in which the call waits for a sandbox."""
        with self._lock:
            self._apart += 1
            if self._counted_since_s is not None:
                self._own_left_s -= time.monotonic() - self._counted_since_s
                self._counted_since_s = None
        self._notify()
        try:
            yield
        finally:
            with self._lock:
                self._apart -= 1
                if not self._apart:
                    self._counted_since_s = time.monotonic()
            self._notify()

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        """Pause the limit within the block, in which a program runs; its time counts separately."""
        began_s = time.monotonic()
        with self.waiting():
            try:
                yield
            finally:
                with self._lock:
                    self._programs_left_s -= time.monotonic() - began_s

    def _notify(self) -> None:
        """Reschedule the timeout on the call's event loop, from any thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._reschedule)

    def _reschedule(self) -> None:
        if self._loop is None or self._timeout.expired():
            return
        with self._lock:
            since_s, left_s = self._counted_since_s, self._own_left_s
        if since_s is None:
            self._timeout.reschedule(None)
        else:
            passed_s = time.monotonic() - since_s
            self._timeout.reschedule(self._loop.time() + max(0.0, left_s - passed_s))

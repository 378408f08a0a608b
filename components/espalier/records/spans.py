"""What the time of an attempt went into, measured while it is played.

    sampling   a message of the policy, the engine's queue included
    tools      one call of a tool
    scoring    the verifier
    waiting    for a place in the engine, a worker of the tools, or a sandbox
    other      the environment besides: its beginning, a user's reply

Who plays an episode opens a `SpanLog`; what it calls finds that in a context variable, which
follows a call into its thread. Outside of an episode nothing is measured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple

SpanKind = Literal["sampling", "tools", "scoring", "waiting", "other"]


class Span(NamedTuple):
    """A part of an attempt's time; no two of them are counted twice."""

    kind: SpanKind
    start: float
    """Seconds since the attempt began."""
    end: float
    turn: int | None
    """Number of the policy's message that it belongs to, from 0; None before the first."""


_LEAST_S = 1e-3
"""Shorter waits, and beginnings of a call before it waits, are not told apart from what follows."""
_current: ContextVar[SpanLog | None] = ContextVar("span_log", default=None)


class SpanLog:
    """The spans of one attempt; any thread may add to it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin at second 0 of `clock`, which gives seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._spans: list[Span] = []
        self._turn: int | None = None

    @property
    def spans(self) -> tuple[Span, ...]:
        """Return what was measured so far, in the order of its beginnings."""
        with self._lock:
            return tuple(sorted(self._spans, key=lambda span: (span.start, span.end)))

    @contextmanager
    def recording(self) -> Generator[SpanLog]:
        """Within the block, and what it calls, `measured` adds to this log."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    def next_turn(self) -> None:
        """Count what follows to the policy's next message."""
        self._turn = 0 if self._turn is None else self._turn + 1

    @contextmanager
    def measure(self, kind: SpanKind) -> Generator[None]:
        """Add the block's time, without what is measured within it."""
        turn, start = self._turn, self._now()
        try:
            yield
        finally:
            self._add(kind, start, self._now(), turn)

    def _now(self) -> float:
        return self._clock() - self._began

    def _add(self, kind: SpanKind, start: float, end: float, turn: int | None) -> None:
        if kind == "waiting" and end - start < _LEAST_S:
            return
        with self._lock:
            # what lies within has ended before
            within = [span for span in self._spans if span.start >= start]
            if any(span.kind == kind for span in within):
                return  # the calls of a step were measured one by one
            place = start
            for inner in sorted(within, key=lambda span: span.start):
                if inner.start - place >= _LEAST_S:
                    self._spans.append(Span(kind, place, inner.start, turn))
                place = max(place, inner.end)
            if end > place or not within:
                self._spans.append(Span(kind, place, end, turn))


@contextmanager
def measured(kind: SpanKind) -> Generator[None]:
    """Add the block's time to the attempt that is played, if one is."""
    log = _current.get()
    if log is None:
        yield
        return
    with log.measure(kind):
        yield


def next_turn() -> None:
    """Count what follows to the next message of the policy in the attempt that is played."""
    log = _current.get()
    if log is not None:
        log.next_turn()

"""Waiting for a server that is away, where nobody else would try again.

A step of Kubeflow has nobody: its launcher turns every exit code into 1, so that the back end
cannot tell "try again" from "refused". The step therefore says how long it waits (`patient`), and
whoever talks to a server asks through `patiently`. Elsewhere a server that is away ends the command
at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from espalier.records.errors import EspalierError, RegistryAwayError, StorageAwayError

AWAY = (RegistryAwayError, StorageAwayError)
"""A server did not answer; the same request may succeed later."""

STEP_PATIENCE_S = 600.0
"""How long a step of Kubeflow waits: a lost server's pod runs on another node in less."""
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a server may be away, and who hears of it."""

    total_s: float
    """From the first failure of a request to its last try."""
    say: Callable[[str], None]
    """Takes a line for each try that failed."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


_patience: ContextVar[Patience | None] = ContextVar("patience", default=None)


@contextmanager
def patient(patience: Patience) -> Generator[None]:
    """Within the block, `patiently` waits for servers that are away; in this thread only."""
    token = _patience.set(patience)
    try:
        yield
    finally:
        _patience.reset(token)


def patiently(request: Callable[[], Answer]) -> Answer:
    """The result of `request`, asked again with growing pauses while a server is away.

    Args:
        request: called once a try; it may be repeated although it had an effect.

    Raises:
        RegistryAwayError: or StorageAwayError: still away after `Patience.total_s`, or at once
            outside of a `patient` block.
    """
    patience, pause_s = _patience.get(), _FIRST_PAUSE_S
    deadline = 0.0
    while True:
        try:
            return request()
        except AWAY as error:
            if patience is None:
                raise
            deadline = deadline or patience.clock() + patience.total_s
            left_s = deadline - patience.clock()
            if left_s <= 0:
                raise
            pause_s = min(pause_s, left_s)
            patience.say(f"{_first_line(error)} Tries again in {pause_s:.0f} s, for {left_s:.0f} s")
        patience.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _first_line(error: EspalierError) -> str:
    return str(error).partition("\n")[0]

"""Waits for an unreachable server, where no scheduler would retry.

Kubeflow does not retry a step: its launcher turns every exit code into 1, so the back end cannot
tell "try again" from "refused". The step therefore sets how long it waits (`patient`), and requests
to servers are made through `patiently`. Elsewhere an unreachable server ends the command at once.
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
"""Errors of a server that did not answer; the same request may succeed later."""

STEP_PATIENCE_S = 600.0
"""How long a step of Kubeflow waits: a lost server's pod runs on another node sooner."""
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a server may be unreachable, and who is informed."""

    total_s: float
    """Time from the first failure of a request to its last retry."""
    say: Callable[[str], None]
    """Called with a line for each failed try."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


_patience: ContextVar[Patience | None] = ContextVar("patience", default=None)


@contextmanager
def patient(patience: Patience) -> Generator[None]:
    """Within the block, `patiently` waits for unreachable servers, in this thread only."""
    token = _patience.set(patience)
    try:
        yield
    finally:
        _patience.reset(token)


def patiently(request: Callable[[], Answer]) -> Answer:
    """Return the result of `request`, retried with growing pauses while a server is unreachable.

    Args:
        request: called once per try; a repeated call may come after one that had an effect.

    Raises:
        RegistryAwayError: or StorageAwayError: still unreachable after `Patience.total_s`, or at
            once outside a `patient` block.
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

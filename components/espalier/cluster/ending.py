"""What a step does when it is asked to end, as the kubelet asks with SIGTERM.

The first process of a container gets no signal that it has not asked for, not even those that end
any other process: without this a pod would be waited for, and then killed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_signals(act: Callable[[int], None]) -> Generator[None]:
    """Call `act` with the number of a signal that asks for an end, in the main thread."""

    def called(number: int, _frame: FrameType | None) -> None:
        act(number)

    before = {number: signal.signal(number, called) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Let no further signal end what is being cleaned up; `on_signals` undoes it."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)

"""Handlers of SIGTERM and SIGINT for a process that cleans up or forwards the signal."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_signals(act: Callable[[int], None]) -> Generator[None]:
    """Call `act` in the main thread with the number of each SIGTERM or SIGINT within the block.

    PID 1 of a container receives only signals that it handles: without a handler the kubelet would
    wait for the whole grace period and then kill the pod.
    """

    def called(number: int, _frame: FrameType | None) -> None:
        act(number)

    before = {number: signal.signal(number, called) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore further signals during clean-up, until `on_signals` restores the handlers."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)

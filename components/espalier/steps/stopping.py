"""Stops the process within seconds on Ctrl-C (SIGINT) or SIGTERM, whatever the main thread does.

At a signal, `Stopped` is raised in the main thread, which unwinds, and trackers mark their runs
KILLED. But Python raises only between two instructions of the main thread, which may be in a long
library call or waiting for a thread that waits for a tool. So a watcher thread ends the process
after `GRACE_S`. Artifacts are published with one rename, so even that leaves none half-written.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

GRACE_S = 3.0
"""Seconds for the main thread to unwind."""
_LAST_CALLS_S = 1.0
"""Seconds for the calls of `before_forced_end`, also where a tracking server does not answer."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_END_OF_WATCH = b"\0"
_FROM_HANDLER = 0x80
"""Bit that marks a byte from Python's handler; its C code writes an unmarked one before."""

_at_once: list[Callable[[], None]] = []
_before_forced_end: list[Callable[[], None]] = []


class Stopped(KeyboardInterrupt):
    """A SIGINT or SIGTERM; code that does not catch KeyboardInterrupt does not catch it either."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)


@contextmanager
def stopping_on_signals(say: Callable[[str], None], how_to_go_on: str) -> Generator[None]:
    """End this process within seconds, after a clean-up, at a SIGINT or SIGTERM in the block.

    The exit code is 130 or 143, as a shell reports these two signals. Outside of the main thread,
    where Python takes no signals, this does nothing.

    Args:
        say: takes a line when the signal comes, and one at the end.
        how_to_go_on: end of the last line, which tells how to continue.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watch = _Watch(say, how_to_go_on)
    before = {number: signal.signal(number, watch.interrupt) for number in _SIGNALS}
    watch.begin()
    is_done = False
    try:
        yield
        is_done = True
    finally:
        # after a signal the exit code is the signal's, whatever the block raises: a failed clean-up
        # (when peers are gone, too) may replace Stopped, and the exit code of an error would end a
        # Job for good that was only suspended
        if watch.number is not None and not is_done:
            watch.say_last_line()
            # not SystemExit, with which Python would wait for its threads, one of which may be in a
            # tool, and collect garbage, which takes 12 s on a busy machine with torch and MLflow
            atexit._run_exitfuncs()
            _end_now(128 + watch.number)
        if watch.number is None:
            for number, handler in before.items():
                signal.signal(number, handler)
            watch.end()


@contextmanager
def at_once(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in another thread as soon as a signal comes within the block."""
    with _listed(_at_once, act):
        yield


@contextmanager
def before_forced_end(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in another thread if the main thread does not unwind after a signal."""
    with _listed(_before_forced_end, act):
        yield


@contextmanager
def _listed(acts: list[Callable[[], None]], act: Callable[[], None]) -> Iterator[None]:
    acts.append(act)
    try:
        yield
    finally:
        acts.remove(act)


class _Watch:
    """Thread that reads signals at once, and ends the process if the main thread does not."""

    def __init__(self, say: Callable[[str], None], how_to_go_on: str) -> None:
        self.number: int | None = None
        """Number of the first signal that the main thread received."""
        self._say = say
        self._how_to_go_on = how_to_go_on
        self._has_printed_first_line = threading.Event()
        self._last_line = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="stopping", daemon=True)
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        self._former_fd = -1

    def begin(self) -> None:
        """Start the watcher thread."""
        self._former_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._leave_to_parent)
        self._thread.start()

    def end(self) -> None:
        """Stop the watcher thread."""
        signal.set_wakeup_fd(self._former_fd)
        os.write(self._write_fd, _END_OF_WATCH)
        self._thread.join()
        os.close(self._read_fd)
        os.close(self._write_fd)

    def interrupt(self, number: int, _frame: FrameType | None) -> None:
        """Raise in the main thread, once: a second exception would interrupt the clean-up."""
        # written here, too, because a library may have replaced the wakeup descriptor
        os.write(self._write_fd, bytes([number | _FROM_HANDLER]))
        if self.number is None:
            self.number = number
            raise Stopped(number)

    def say_last_line(self) -> None:
        """Print how to resume, once."""
        self._has_printed_first_line.wait(_LAST_CALLS_S)
        if self._last_line.acquire(blocking=False):
            self._say(f"stopped. {self._how_to_go_on}")

    def _leave_to_parent(self) -> None:
        """In a forked child, restore the default signal handlers."""
        if signal.getsignal(signal.SIGTERM) == self.interrupt:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _run(self) -> None:
        byte = os.read(self._read_fd, 1)
        while byte[0] & ~_FROM_HANDLER not in _SIGNALS:
            if byte == _END_OF_WATCH:
                return
            byte = os.read(self._read_fd, 1)
        number = byte[0] & ~_FROM_HANDLER
        self._say(f"{signal.Signals(number).name}: stopping within {GRACE_S + _LAST_CALLS_S:.0f} s")
        self._has_printed_first_line.set()
        for act in list(_at_once):
            act()
        self._wait_for_main_thread(byte)
        self._end_process(number)

    def _wait_for_main_thread(self, first: bytes) -> None:
        """Return after the grace period, or at once if the same signal comes again."""
        deadline = time.monotonic() + GRACE_S
        known = {first}
        while (left_s := deadline - time.monotonic()) > 0:
            if select.select([self._read_fd], [], [], left_s)[0]:
                byte = os.read(self._read_fd, 1)
                if byte in known:
                    return
                known.add(byte)

    def _end_process(self, number: int) -> NoReturn:
        calls = threading.Thread(target=_call_all, args=(list(_before_forced_end),), daemon=True)
        calls.start()
        calls.join(_LAST_CALLS_S)
        self.say_last_line()
        _end_now(128 + number)


def _end_now(exit_code: int) -> NoReturn:
    """End this process and its descendants."""
    sys.stdout.flush()
    sys.stderr.flush()
    for child in _descendants(os.getpid()):
        _kill(child, signal.SIGKILL)
    os._exit(exit_code)


def _call_all(acts: list[Callable[[], None]]) -> None:
    for act in acts:
        act()


def terminate_children() -> None:
    """Send SIGTERM to every descendant of this process."""
    for child in _descendants(os.getpid()):
        _kill(child, signal.SIGTERM)


def _descendants(pid: int) -> list[int]:
    """Descendants of `pid`, parents first; empty where /proc does not list them."""
    found: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in listing.read_text().split()]
        except OSError:
            continue  # the thread has ended meanwhile
        for child in children:
            found += [child, *_descendants(child)]
    return found


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return

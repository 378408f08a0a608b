"""What episodes wait for, since when, and the end of a wait that is longer than it may be.

A wait that can be interrupted ends with a `HungError`. One that no exception reaches, as of a tool
in the event loop's own thread, ends the process: `exit_if_hung`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from espalier.config import Profile
from espalier.environments import EnvironmentLostError
from espalier.records import HungError

T = TypeVar("T")

_POLL_S = 1.0
_LOOP_ANSWERS_WITHIN_S = 10.0
"""Beyond the limit: an event loop that runs has raised the error by then."""
ENGINE_PLACE, ENGINE_ACTION = "a place in the engine", "the policy's next message"
"""What episodes wait for whose environment has answered. While a tool keeps the event loop from
running all others do, and for longer: it is named before them."""
_NAMED = 3
"""Waits that an error names: tools first, and of equal ones the longest."""

_log = logging.getLogger(__name__)


def hangs_after_s(profile: Profile) -> float:
    """How long no episode may get what it waits for, or end, in seconds."""
    agent_s = profile.agent.deadline_s if profile.agent.plays else 0.0
    return profile.rollout.deadline_s + profile.rollout.tool_timeout_s + agent_s


class Wait(NamedTuple):
    """One episode that waits."""

    task_id: str
    what: str
    """What it waits for."""
    since_s: float
    """By `time.monotonic`."""


class Waits:
    """The waits of one roller's episodes; may be read from any thread."""

    def __init__(self, limit_s: float = math.inf) -> None:
        """`limit_s` is how long nothing may come, see `hangs_after_s`."""
        self._limit_s = limit_s
        self._open: dict[int, Wait] = {}
        self._numbers = itertools.count()
        self._progress_s = time.monotonic()
        self._slow: set[str] = set()
        self._lost: set[str] = set()

    def progress(self) -> None:
        """Sampling begins, an episode has got what it waited for, or one has ended."""
        self._progress_s = time.monotonic()

    @contextmanager
    def wait(self, task_id: str, what: str) -> Generator[None]:
        """Within the block the task's episode waits for `what`."""
        number = next(self._numbers)
        self._open[number] = Wait(task_id, what, time.monotonic())
        try:
            yield
        finally:
            del self._open[number]
        self.progress()  # not where it was cancelled or given up

    @property
    def open(self) -> list[Wait]:
        """Those that have begun and not ended."""
        return list(self._open.values())

    def was_too_slow(self, task_id: str, what: str, limit_s: float) -> None:
        """Log that a call was given up, once for each kind of call."""
        if what not in self._slow:
            self._slow.add(what)
            _log.warning(
                "task %s: %s took longer than rollout.tool_timeout_s = %g; such episodes are lost "
                "(lost_episodes), this line is written once",
                task_id,
                what,
                limit_s,
            )

    def was_lost(self, task_id: str, what: str, why: EnvironmentLostError) -> None:
        """Log why a call lost its environment, once for each kind of call."""
        if what not in self._lost:
            self._lost.add(what)
            _log.warning(
                "task %s: %s lost its environment: %s; such episodes are played again, and lost "
                "(lost_episodes) after rollout.max_replays, this line is written once",
                task_id,
                what,
                why,
            )

    async def by_the_deadline(self, played: asyncio.Future[T]) -> T:
        """Await the end of all episodes.

        Raises:
            HungError: none of them got what it waits for, for as long as the limit says.
        """
        try:
            while not played.done():
                left_s = self._limit_s - self.silent_s
                if left_s <= 0:
                    raise HungError(hang_message(self._limit_s, self.open))
                await asyncio.wait([played], timeout=None if left_s == math.inf else left_s)
            return played.result()
        finally:
            played.cancel()
            await asyncio.wait([played])

    def overdue(self) -> str | None:
        """The error of a tool that keeps the event loop itself from running, for `exit_if_hung`."""
        if self.silent_s < self._limit_s + _LOOP_ANSWERS_WITHIN_S:
            return None
        return hang_message(self._limit_s, self.open)

    @property
    def silent_s(self) -> float:
        """Seconds since the newest `progress`."""
        return time.monotonic() - self._progress_s


def hang_message(limit_s: float, waits: Iterable[Wait], also: Sequence[str] = ()) -> str:
    """The error where nothing has come for `limit_s`; it names the longest waits.

    Args:
        limit_s: in seconds.
        waits: of the episodes.
        also: what else is not over.
    """
    longest = sorted(
        waits, key=lambda wait: (wait.what in (ENGINE_PLACE, ENGINE_ACTION), wait.since_s)
    )
    now_s = time.monotonic()
    named = [
        *also,
        *(
            f"task {wait.task_id} has waited {now_s - wait.since_s:.0f} s for {wait.what}"
            for wait in longest[:_NAMED]
        ),
    ]
    others = f", and {len(longest) - _NAMED} more" if len(longest) > _NAMED else ""
    return (
        f"sampling hangs: nothing that episodes wait for has come for {limit_s:g} s: "
        f"{'; '.join(named) or 'none waits for its environment or the policy'}{others}. Mend that, "
        "and the same command goes on from the last checkpoint; or raise rollout.deadline_s. With "
        "rollout.tool_workers above 0 a call that takes longer than rollout.tool_timeout_s ends "
        "its own episode alone"
    )


@contextmanager
def exit_if_hung(
    overdue: Callable[[], str | None],
    *,
    every_s: float = _POLL_S,
    before_exit: Callable[[], None] = lambda: None,
) -> Generator[None]:
    """End this process with status 1 if something hangs that cannot be interrupted.

    Args:
        overdue: called in a thread while the block runs; an error message if something is overdue.
        every_s: seconds between its calls.
        before_exit: what has to be ended first.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(every_s):
            message = overdue()
            if message and not done.is_set():
                _log.critical("error: %s", message)
                before_exit()
                os._exit(1)

    thread = threading.Thread(target=watch, name="espalier-hangs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

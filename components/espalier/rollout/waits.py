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

_MAX_SAID = 500
"""Characters of a warning."""

_log = logging.getLogger(__name__)


def hangs_after_s(profile: Profile) -> float:
    """How long no episode may get what it waits for, or end, in seconds."""
    agent_s = profile.agent.deadline_s if profile.agent.plays else 0.0
    return profile.rollout.deadline_s + profile.rollout.tool_timeout_s + agent_s


class NamedCall(NamedTuple):
    """A call of an environment, for whoever waits for it."""

    kind: str
    """The method: one of a few."""
    name: str
    """With the tools that the policy asked for."""


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
        self._said: set[str] = set()

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

    def was_too_slow(self, task_id: str, call: NamedCall, limit_s: float) -> None:
        """Log that a call was given up, once for each kind of call."""
        self._say_once(
            f"{call.kind} was too slow",
            f"task {task_id}: {call.name} took longer than rollout.tool_timeout_s = {limit_s:g}",
        )

    def was_lost(self, task_id: str, call: NamedCall, why: EnvironmentLostError) -> None:
        """Log why a call lost its environment, once for each kind of call."""
        self._say_once(
            f"{call.kind} was lost", f"task {task_id}: {call.name} lost its environment: {why}"
        )

    def _say_once(self, what: str, said: str) -> None:
        if what not in self._said:
            self._said.add(what)
            line = " ".join(said.split())  # tools are named by the policy, reasons by servers
            line = line if len(line) <= _MAX_SAID else f"{line[:_MAX_SAID]} ..."
            _log.warning(
                "%s; episodes that stay lost count as lost_episodes, this line is written once",
                line,
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

"""What episodes wait for and since when, and how a wait that takes too long is ended.

A wait that can be interrupted ends with a `HungError`. Where no exception can reach it, as in a
tool on the event loop's own thread, `exit_if_hung` ends the process.
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
"""Extra time beyond the limit: an event loop that still runs has raised the error by then."""
ENGINE_PLACE, ENGINE_ACTION = "a place in the engine", "the policy's next message"
"""Waits for the engine. While a tool blocks the event loop, all other episodes wait like this, and
longer than the tool: an error therefore names tools first."""
_LEAVES_WITHIN_S = 15.0
"""How long the end of a block waits for its watch, which may hang in a call that nothing ends."""
_NAMED = 3
"""Number of waits that an error names: tools first, then the longest waits."""

_MAX_SAID = 500
"""Characters of a warning."""

_log = logging.getLogger(__name__)


def hangs_after_s(profile: Profile) -> float:
    """Return how long, in seconds, all episodes may make no progress."""
    agent_s = profile.agent.deadline_s if profile.agent.plays else 0.0
    return profile.rollout.deadline_s + profile.rollout.tool_timeout_s + agent_s


class NamedCall(NamedTuple):
    """A call of an environment, named for error messages."""

    kind: str
    """The method name; one of a few."""
    name: str
    """The method, with the tools that the policy called."""


class Wait(NamedTuple):
    """One waiting episode."""

    task_id: str
    what: str
    """What the episode waits for."""
    since_s: float
    """By `time.monotonic`."""


class EpisodeWaits:
    """The waits of one roller's episodes; may be read from any thread."""

    def __init__(self, limit_s: float = math.inf) -> None:
        """Start with no waits; `limit_s` is the longest time without progress (`hangs_after_s`)."""
        self._limit_s = limit_s
        self._open: dict[int, Wait] = {}
        self._numbers = itertools.count()
        self._progress_s = time.monotonic()
        self._said: set[str] = set()

    def progress(self) -> None:
        """Record progress: sampling begins, or an episode ends or gets what it waited for."""
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
        self.progress()  # a cancelled or abandoned wait is not progress

    @property
    def open(self) -> list[Wait]:
        """Return the waits that have begun and not ended."""
        return list(self._open.values())

    def was_too_slow(self, task_id: str, call: NamedCall, limit_s: float) -> None:
        """Log that a call exceeded its time limit, once for each kind of call."""
        self._say_once(
            f"{call.kind} exceeded its time limit",
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
            # one line: the policy chose the tool's name, and a server wrote the reason
            line = " ".join(said.split())
            line = line if len(line) <= _MAX_SAID else f"{line[:_MAX_SAID]} ..."
            _log.warning(
                "%s; episodes that stay lost count as lost_episodes, this line is written once",
                line,
            )

    async def by_the_deadline(self, played: asyncio.Future[T]) -> T:
        """Await the end of all episodes.

        Raises:
            HungError: no episode made progress within the limit.
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
        """Return the error for a tool that blocks the event loop, for `exit_if_hung`; or None."""
        if self.silent_s < self._limit_s + _LOOP_ANSWERS_WITHIN_S:
            return None
        return hang_message(self._limit_s, self.open)

    @property
    def silent_s(self) -> float:
        """Return the seconds since the last `progress`."""
        return time.monotonic() - self._progress_s


def hang_message(limit_s: float, waits: Iterable[Wait], also: Sequence[str] = ()) -> str:
    """Return the error message for `limit_s` without progress; it names the longest waits.

    Args:
        limit_s: the limit, in seconds.
        waits: waits of the episodes.
        also: other work that has not ended.
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
        f"sampling hangs: no episode has made progress for {limit_s:g} s: "
        f"{'; '.join(named) or 'no episode waits for its environment or the policy'}{others}. "
        "Remove the cause, and the same command goes on from the last checkpoint; or raise "
        "rollout.deadline_s. With rollout.tool_workers above 0 a call that takes longer than "
        "rollout.tool_timeout_s ends only its own episode"
    )


@contextmanager
def exit_if_hung(
    overdue: Callable[[], str | None],
    *,
    every_s: float = _POLL_S,
    before_exit: Callable[[], None] = lambda: None,
) -> Generator[None]:
    """End this process if something hangs that no exception can interrupt.

    It ends with EX_TEMPFAIL, as a step with a `HungError` does: the same command may succeed later.

    Args:
        overdue: called in a thread while the block runs; returns an error if something is overdue.
        every_s: seconds between its calls.
        before_exit: called first, to end what must not outlive this process.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(every_s):
            message = overdue()
            if message and not done.is_set():
                _log.critical("error: %s", message)
                before_exit()
                os._exit(os.EX_TEMPFAIL)

    thread = threading.Thread(target=watch, name="espalier-hangs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_LEAVES_WITHIN_S)

"""Detects ranks that hang: each reports every second, and a waiting rank names the missing one.

A rank that dies breaks its connections, which is noticed at once (`launch`). One that is stopped,
or blocked in a tool or a driver, keeps them: the others wait in a collective operation that nothing
interrupts. So a thread of each rank watches the others, names the missing one, and ends the
process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, Protocol

from espalier.rollout.waits import exit_if_hung
from espalier.training.parallel import Position, Processes

BEAT_S = 1.0
_LISTENS_FOR_S = 3.0
"""A running rank reports its position again within this time."""
_RANK_ZERO_FIRST_S = 10.0
"""Extra wait of other ranks, so that rank 0, whose log is read first, names the rank that hangs."""

_SAID_AFTER_S = 30.0
"""Silence after which the log names a rank. Even one that swaps has reported within this time; the
limit itself is long, because ranks that report may be at work."""

_log = logging.getLogger(__name__)


class Store(Protocol):
    """The methods of torch's TCPStore used here; they raise RuntimeError if nobody answers."""

    def set(self, key: str, value: str, /) -> None:
        """Store a value."""
        ...

    def get(self, key: str, /) -> bytes:
        """Return a value; wait until there is one."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Return whether all the keys have values."""
        ...


class _Beat(NamedTuple):
    """The last report of a rank."""

    beat: int
    """Number of its reports: one that does not grow belongs to a stopped rank."""
    number: int
    """Number of collective operations that it has begun."""
    place: str

    def encoded(self) -> str:
        return f"{self.beat}/{self.number}/{self.place}"


class RankWatch:
    """Writes this rank's reports, and detects ranks that hang."""

    def __init__(self, processes: Processes, connect: Callable[[], Store], limit_s: float) -> None:
        """Prepare the watch of one rank.

        Args:
            processes: the group that this process has joined.
            connect: makes a connection to the store for the watch alone; called by the first look,
                and again after RuntimeError.
            limit_s: longest wait for a rank.
        """
        self._processes = processes
        self._connect = connect
        self._connected: Store | None = None
        self._limit_s = limit_s
        self._beats = 0
        self._heard: dict[int, tuple[int, float]] = {}
        """For each other rank its newest report, and when that changed."""
        self._said: set[int] = set()
        """Silent ranks that the log has named."""
        self._looks_since_s: float | None = None
        """When the look began that has not ended; None between two looks."""

    def look(self) -> str | None:
        """Report this rank's position; return the error message if another rank hangs."""
        self._looks_since_s = time.monotonic()
        try:
            return self._look()
        finally:
            self._looks_since_s = None

    def unanswered(self) -> str | None:
        """Return the error message if a look does not end; called by another thread.

        A stopped rank 0 keeps its connections: torch then waits for the store without a limit.
        """
        position, now_s, since_s = self._processes.position, time.monotonic(), self._looks_since_s
        if self._processes.is_first or since_s is None or now_s - since_s < _RANK_ZERO_FIRST_S:
            return None
        waited_s = now_s - position.since_s if position.is_inside else 0.0
        if waited_s < _RANK_ZERO_FIRST_S + self._limit_s:
            return None
        return self._error(position, waited_s, ["rank 0 does not answer"])

    def _look(self) -> str | None:
        position, now_s = self._processes.position, time.monotonic()
        patience_s = (
            self._limit_s if self._processes.is_first else _RANK_ZERO_FIRST_S + self._limit_s
        )
        waited_s = now_s - position.since_s if position.is_inside else 0.0
        try:
            self._say(position)
            if waited_s > patience_s:
                return self._message(position, waited_s)
            return self._silent_rank(now_s) if self._processes.is_first else None
        except RuntimeError:  # torch has no narrower error for a store that does not answer
            self._say_once(0, waited_s, "rank 0 does not answer")
            if waited_s > patience_s and not self._processes.is_first:
                return self._error(position, waited_s, ["rank 0 does not answer"])
            return None

    def _store(self) -> Store:
        if self._connected is None:
            self._connected = self._connect()
        return self._connected

    def _say(self, position: Position) -> None:
        self._beats += 1
        place = f"in {position.name}" if position.is_inside else f"at work after {position.name}"
        if self._processes.step:
            place = f"{place}, step {self._processes.step}"
        said = _Beat(self._beats, position.number, place)
        self._store().set(_key(self._processes.rank), said.encoded())

    def _silent_rank(self, now_s: float) -> str | None:
        """Return the error message if a rank has reported nothing for the whole limit."""
        for rank in self._others():
            beat = self._read(rank)
            count = beat.beat if beat else 0
            before, since_s = self._heard.get(rank, (-1, now_s))
            if count != before:
                self._heard[rank] = (count, now_s)
                self._said.discard(rank)
                continue
            self._say_once(rank, now_s - since_s, _silent(rank, beat))
            if now_s - since_s > self._limit_s:
                return self._error(None, now_s - since_s, [_silent(rank, beat)])
        return None

    def _say_once(self, rank: int, silent_s: float, what: str) -> None:
        if silent_s > _SAID_AFTER_S and rank not in self._said:
            self._said.add(rank)
            _log.warning(
                "%s; this run waits for it, for %g s (training.collective_timeout_s)",
                what, self._limit_s,
            )  # fmt: skip

    def _message(self, position: Position, waited_s: float) -> str:
        first = {rank: self._read(rank) for rank in self._others()}
        time.sleep(_LISTENS_FOR_S)
        absent: list[str] = []
        for rank in self._others():
            beat = self._read(rank)
            if beat is None or beat == first[rank]:
                absent.append(_silent(rank, beat))
            elif beat.number < position.number:
                absent.append(f"rank {rank} has not reached it: it is {beat.place}")
        return self._error(position, waited_s, absent or ["all ranks are in it"])

    def _error(self, position: Position | None, waited_s: float, absent: Sequence[str]) -> str:
        step = f", step {self._processes.step}" if self._processes.step else ""
        where = (
            f" in {position.name} (collective operation {position.number}{step})"
            if position
            else f" at work{step}"
        )
        return (
            f"rank {self._processes.rank} of {self._processes.count} processes that train together "
            f"has waited {waited_s:.0f} s{where}: {'; '.join(absent)}. The same command goes on "
            "from the last checkpoint; training.collective_timeout_s allows more time"
        )

    def _read(self, rank: int) -> _Beat | None:
        if not self._store().check([_key(rank)]):
            return None
        beat, number, place = self._store().get(_key(rank)).decode().split("/", 2)
        return _Beat(int(beat), int(number), place)

    def _others(self) -> list[int]:
        return [rank for rank in range(self._processes.count) if rank != self._processes.rank]


def _silent(rank: int, beat: _Beat | None) -> str:
    last = f", and was last {beat.place}" if beat else ""
    return f"rank {rank} has not reported: it is stopped, or its machine is gone{last}"


def _key(rank: int) -> str:
    return f"at/{rank}"


@contextmanager
def ranks_watched(
    processes: Processes,
    connect: Callable[[], Store],
    *,
    limit_s: float,
    end_workers: Callable[[], None],
) -> Generator[None]:
    """Within the block, end this process with EX_TEMPFAIL if another rank hangs.

    Args:
        processes: the group that this process has joined.
        connect: makes a connection to the store for the watching thread alone, whose calls end
            within seconds while rank 0 runs; is called again if it raises RuntimeError.
        limit_s: longest wait for a rank.
        end_workers: kills the other processes, where this one has started them.
    """
    ranks = RankWatch(processes, connect, limit_s)
    with ExitStack() as stack:
        for watch in (ranks.look, ranks.unanswered):
            stack.enter_context(exit_if_hung(watch, every_s=BEAT_S, before_exit=end_workers))
        yield

"""One part on disk: rows beside their journal, continued where a kill left them."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from espalier.records import EngineError
from espalier.synthesis.bulk.journal import events_of, packed, recover
from espalier.synthesis.bulk.stream import QuestionStream
from espalier.synthesis.webshaper.candidate import Candidate

_FLUSH_ROWS = 100
"""Rows that a kill costs at most; they are made again, the same."""


class Drawn(NamedTuple):
    """A part that has the rows asked for, or all that there are."""

    rows: int
    draws: int
    """Queries that were judged."""
    ended_signatures: int
    is_dry: bool
    """It yields no more."""


def write_part(
    directory: Path, stream: QuestionStream, row: Callable[[Candidate], str], count: int
) -> Drawn:
    """Write up to `count` rows into `directory`; fewer where the part yields no more.

    Args:
        directory: rows.jsonl, journal, and done.json once the part is finished.
        stream: in its first state.
        row: the line of a question, without its end.
        count: rows of the whole part, those of earlier calls included.

    Raises:
        EngineError: another process writes the part, or the one that asked for it is gone.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if (finished := finished_part(directory, count)) is not None:
        return finished
    with _held(directory / "lock"):
        drawn = _continued(directory, stream, row, count)
    partial = directory / "done.partial"
    partial.write_text(json.dumps(drawn._asdict()), encoding="utf-8")
    partial.replace(directory / "done.json")
    return drawn


def finished_part(directory: Path, count: int) -> Drawn | None:
    """What a part holds that has `count` rows or runs dry before; None while it goes on."""
    path = directory / "done.json"
    drawn = Drawn(**json.loads(path.read_bytes())) if path.is_file() else None
    return drawn if drawn and (drawn.is_dry or drawn.rows >= count) else None


def _continued(
    directory: Path, stream: QuestionStream, row: Callable[[Candidate], str], count: int
) -> Drawn:
    """Wind the stream forward to the last row that counts, and write what is missing."""
    rows, journal = directory / "rows.jsonl", directory / "journal"
    kept = recover(rows, journal)
    draws = ended = 0
    for event in events_of(journal, kept.events):
        stream.replay(event)
        draws += event.draws
        ended += not event.accepted
    done = kept.rows
    with rows.open("ab") as row_stream, journal.open("ab") as journal_stream:
        for event, candidate in stream.events() if done < count else ():
            if candidate is not None:
                row_stream.write(f"{row(candidate)}\n".encode())
                done += 1
            journal_stream.write(packed(event))
            draws += event.draws
            ended += not event.accepted
            if done % _FLUSH_ROWS == 0:
                row_stream.flush()
                journal_stream.flush()
                _stop_without_a_parent()
            if done == count:
                break
    return Drawn(done, draws, ended, is_dry=done < count)


@contextmanager
def _held(path: Path) -> Generator[None]:
    """Two writers of one part would mix their rows; the lock goes with its process."""
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EngineError(
                f"{path.parent}: another process writes this part; wait for it, or end it"
            ) from error
        yield


def _stop_without_a_parent() -> None:
    """A worker whose command was killed must not write on behind the back of the next one."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        raise EngineError("the command that asked for these questions is gone")

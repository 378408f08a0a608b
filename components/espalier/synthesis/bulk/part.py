"""One part on disk: rows beside their journal, continued where a kill left them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from espalier.synthesis.bulk.journal import events_of, packed, recover
from espalier.synthesis.bulk.stream import QuestionStream
from espalier.synthesis.webshaper.candidate import Candidate

_FLUSH_ROWS = 100
"""Rows that a kill costs at most; they are made again, the same."""


class Drawn(NamedTuple):
    """A finished part."""

    rows: int
    draws: int
    """Queries that were judged."""
    ended_signatures: int


def write_part(
    directory: Path, stream: QuestionStream, row: Callable[[Candidate], str], count: int
) -> Drawn:
    """Write up to `count` rows into `directory`; fewer where the part yields no more.

    Args:
        directory: rows.jsonl, journal, and done.json once the part is finished.
        stream: in its first state.
        row: the line of a question, without its end.
        count: rows of the whole part, those of earlier processes included.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if (finished := finished_part(directory)) is not None:
        return finished
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
            if done == count:
                break
    drawn = Drawn(done, draws, ended)
    partial = directory / "done.partial"
    partial.write_text(json.dumps(drawn._asdict()), encoding="utf-8")
    partial.replace(directory / "done.json")
    return drawn


def finished_part(directory: Path) -> Drawn | None:
    """What a finished part holds; None while it is not finished."""
    path = directory / "done.json"
    return Drawn(**json.loads(path.read_bytes())) if path.is_file() else None

"""One part of a bulk draw: its stream of questions, and its rows and journal on disk.

A stream is a function of its seed and can be replayed without judging its queries again. Unlike the
generator of a run it does not remember all questions: chains never repeat by construction, so only
joins are remembered, of which there are thousands and not millions. The journal records the result
of every draw, so that a killed part continues after its last whole row.
"""

from __future__ import annotations

import fcntl
import json
import random
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from espalier.records import ArtifactError, EngineError, write_whole
from espalier_search.synthesis.webshaper.candidate import CandidateQuestion, World
from espalier_search.synthesis.webshaper.generator import MAX_FAILURES, not_of_split
from espalier_search.synthesis.webshaper.query import Query, canonical
from espalier_search.synthesis.webshaper.rules import broken_rule
from espalier_search.synthesis.webshaper.steps import Chain, Join, Steps

_EVENT = struct.Struct("<IB")
_CHUNK_BYTES = 1 << 20
_EVENTS_AT_ONCE = 4096


class DrawEvent(NamedTuple):
    """Consecutive draws of one signature, up to an accepted query or the end of the signature."""

    draws: int
    accepted: bool


class KeptRows(NamedTuple):
    """The whole rows of a part after a kill, each with its event."""

    rows: int
    row_bytes: int
    events: int


def pack_event(event: DrawEvent) -> bytes:
    """The event as bytes of the journal."""
    return _EVENT.pack(event.draws, event.accepted)


def read_events(path: Path, number: int) -> Iterator[DrawEvent]:
    """The first `number` events of a journal."""
    with path.open("rb") as stream:
        while number:
            block = stream.read(_EVENT.size * min(number, _EVENTS_AT_ONCE))
            for draws, accepted in _EVENT.iter_unpack(block):
                yield DrawEvent(draws, bool(accepted))
            number -= len(block) // _EVENT.size


def recover_part(rows: Path, journal: Path) -> KeptRows:
    """Truncate both files to the last whole row that has its event.

    A kill loses what was in a buffer, so there may be rows without events, events without rows, or
    half of either.
    """
    for path in (rows, journal):
        path.touch()
    num_events = journal.stat().st_size // _EVENT.size
    accepted = sum(event.accepted for event in read_events(journal, num_events))
    with rows.open("rb") as stream:
        blocks = iter(lambda: stream.read(_CHUNK_BYTES), b"")
        num_lines = sum(block.count(b"\n") for block in blocks)
    kept_rows = min(num_lines, accepted)
    kept_events = _events_of_rows(journal, num_events, kept_rows)

    row_bytes = 0
    with rows.open("rb") as stream:
        for _ in range(kept_rows):
            row_bytes += len(stream.readline())
    with rows.open("r+b") as stream:
        stream.truncate(row_bytes)
    with journal.open("r+b") as stream:
        stream.truncate(kept_events * _EVENT.size)
    return KeptRows(kept_rows, row_bytes, kept_events)


def _events_of_rows(journal: Path, num_events: int, rows: int) -> int:
    """Number of events up to and including that of the last kept row."""
    kept = seen = 0
    for number, event in enumerate(read_events(journal, num_events), start=1):
        if seen == rows:
            break
        if event.accepted:
            seen, kept = seen + 1, number
    return kept


class _SignatureQueries:
    """The remaining queries of one signature."""

    def __init__(self, signature: Chain | Join, queries: Iterator[Query]) -> None:
        self.queries = queries
        self.seen: set[str] | None = set() if isinstance(signature, Join) else None
        """Canonical texts of accepted joins; None for a chain, whose queries never repeat."""


class QuestionStream:
    """Draws a kind by weight, one of its signatures uniformly, then its next fair query."""

    def __init__(
        self,
        signatures: Mapping[str, Sequence[Chain | Join]],
        weights: Mapping[str, float],
        steps: Steps,
        world: World,
        seed: str,
    ) -> None:
        self._steps = steps
        self._world = world
        self._weights = weights
        self._rng = random.Random(f"{seed}/signatures")
        self._open = {
            kind: [
                _SignatureQueries(
                    signature, signature.queries(steps, random.Random(f"{seed}/{signature}"))
                )
                for signature in found
            ]
            for kind, found in signatures.items()
            if weights.get(kind, 0) > 0 and found
        }

    def replay(self, event: DrawEvent) -> None:
        """Advance by an event of an earlier process, without judging its queries again.

        Raises:
            ArtifactError: more draws than the signature has queries.
        """
        kind, source = self._chosen()
        query: Query | None = None
        for _ in range(event.draws):
            query = next(source.queries, None)
        if event.draws and query is None:
            raise ArtifactError("the journal was written for another profile or other knowledge")
        if not event.accepted:
            self._close(kind, source)
        elif query is not None and source.seen is not None:
            source.seen.add(canonical(query))

    def events(self) -> Iterator[tuple[DrawEvent, CandidateQuestion | None]]:
        """One event for every fair question and for every signature that ends."""
        while self._open:
            kind, source = self._chosen()
            draws, candidate = self._next_fair(source)
            if candidate is None:
                self._close(kind, source)
            yield DrawEvent(draws, candidate is not None), candidate

    def _next_fair(self, source: _SignatureQueries) -> tuple[int, CandidateQuestion | None]:
        """Draws up to the next fair question; None if the signature ends or is given up."""
        draws = 0
        for query in source.queries:
            draws += 1
            candidate = CandidateQuestion(query, self._world)
            if self._is_fair(candidate, source):
                return draws, candidate
            if draws >= MAX_FAILURES:
                break
        return draws, None

    def _is_fair(self, candidate: CandidateQuestion, source: _SignatureQueries) -> bool:
        text = canonical(candidate.query) if source.seen is not None else ""
        if source.seen is not None and text in source.seen:
            return False
        if broken_rule(candidate) or not_of_split(candidate, self._steps):
            return False
        if source.seen is not None:
            source.seen.add(text)
        return True

    def _chosen(self) -> tuple[str, _SignatureQueries]:
        kinds = list(self._open)
        weights = [self._weights[kind] for kind in kinds]
        (kind,) = self._rng.choices(kinds, weights)
        return kind, self._rng.choice(self._open[kind])

    def _close(self, kind: str, source: _SignatureQueries) -> None:
        sources = self._open[kind]
        sources.remove(source)
        if not sources:
            del self._open[kind]


_FLUSH_ROWS = 100
"""The most rows lost by a kill; the next run draws them again, unchanged."""


class DrawnPart(NamedTuple):
    """The counts of a finished part."""

    rows: int
    draws: int
    """Number of queries judged."""
    ended_signatures: int
    is_dry: bool
    """Whether the part has no further questions."""


def write_part(
    directory: Path, stream: QuestionStream, row: Callable[[CandidateQuestion], str], count: int
) -> DrawnPart:
    """Write up to `count` rows into `directory`, or fewer if the part has no more questions.

    Args:
        directory: rows.jsonl, journal, and done.json once the part is finished.
        stream: the part's questions, from the first one on.
        row: makes the JSON line of a question, without the line break.
        count: rows of the whole part, including those of earlier calls.

    Raises:
        EngineError: another process writes the part.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if (finished := finished_part(directory, count)) is not None:
        return finished
    with _locked(directory / "lock"):
        drawn = _continue_part(directory, stream, row, count)
    write_whole(directory / "done.json", json.dumps(drawn._asdict()))
    return drawn


def finished_part(directory: Path, count: int) -> DrawnPart | None:
    """The counts of a part with `count` rows or no more questions; None if it is not finished."""
    path = directory / "done.json"
    drawn = DrawnPart(**json.loads(path.read_bytes())) if path.is_file() else None
    return drawn if drawn and (drawn.is_dry or drawn.rows >= count) else None


def _continue_part(
    directory: Path, stream: QuestionStream, row: Callable[[CandidateQuestion], str], count: int
) -> DrawnPart:
    """Replay the journal up to the last kept row, and write the missing rows."""
    rows, journal = directory / "rows.jsonl", directory / "journal"
    kept = recover_part(rows, journal)
    draws = ended = 0
    for event in read_events(journal, kept.events):
        stream.replay(event)
        draws += event.draws
        ended += not event.accepted
    done = kept.rows
    with rows.open("ab") as row_stream, journal.open("ab") as journal_stream:
        for event, candidate in stream.events() if done < count else ():
            if candidate is not None:
                row_stream.write(f"{row(candidate)}\n".encode())
                done += 1
            journal_stream.write(pack_event(event))
            draws += event.draws
            ended += not event.accepted
            if done % _FLUSH_ROWS == 0:
                row_stream.flush()
                journal_stream.flush()
            if done == count:
                break
    return DrawnPart(done, draws, ended, is_dry=done < count)


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold a file lock: two writers of a part would mix rows. A killed process releases it."""
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EngineError(
                f"{path.parent}: another process writes this part; wait for it, or end it"
            ) from error
        yield

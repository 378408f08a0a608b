"""What every draw of a part came to: five bytes an event, written after the row it speaks of."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_EVENT = struct.Struct("<IB")
_CHUNK_BYTES = 1 << 20
_EVENTS_AT_ONCE = 4096


class Event(NamedTuple):
    """Queries that were judged, and whether the last of them was fair; else a signature ended."""

    draws: int
    accepted: bool


class Kept(NamedTuple):
    """What of a part counts after a kill: whole rows, each with its event."""

    rows: int
    row_bytes: int
    events: int


def packed(event: Event) -> bytes:
    """The event as it is written."""
    return _EVENT.pack(event.draws, event.accepted)


def events_of(path: Path, number: int) -> Iterator[Event]:
    """The first `number` events of a journal."""
    with path.open("rb") as stream:
        while number:
            block = stream.read(_EVENT.size * min(number, _EVENTS_AT_ONCE))
            for draws, accepted in _EVENT.iter_unpack(block):
                yield Event(draws, bool(accepted))
            number -= len(block) // _EVENT.size


def recover(rows: Path, journal: Path) -> Kept:
    """Cut both files back to the last row that is whole and has its event.

    A kill leaves whatever was in a buffer unwritten: rows without events, events without rows, or
    half of either.
    """
    for path in (rows, journal):
        path.touch()
    num_events = journal.stat().st_size // _EVENT.size
    accepted = sum(event.accepted for event in events_of(journal, num_events))
    kept_rows = min(_count_lines(rows), accepted)
    kept_events = _events_of_rows(journal, num_events, kept_rows)
    row_bytes = _bytes_of_lines(rows, kept_rows)
    with rows.open("r+b") as stream:
        stream.truncate(row_bytes)
    with journal.open("r+b") as stream:
        stream.truncate(kept_events * _EVENT.size)
    return Kept(kept_rows, row_bytes, kept_events)


def _events_of_rows(journal: Path, num_events: int, rows: int) -> int:
    """Events up to and with the one of the last kept row."""
    kept = seen = 0
    for number, event in enumerate(events_of(journal, num_events), start=1):
        if seen == rows:
            break
        if event.accepted:
            seen, kept = seen + 1, number
    return kept


def _count_lines(path: Path) -> int:
    with path.open("rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(_CHUNK_BYTES), b""))


def _bytes_of_lines(path: Path, number: int) -> int:
    """Where the first `number` lines end."""
    size = 0
    with path.open("rb") as stream:
        for _ in range(number):
            size += len(stream.readline())
    return size

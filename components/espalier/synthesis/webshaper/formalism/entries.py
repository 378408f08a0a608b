"""A formalization: the list of [X, relation, S] entries that a question is made of.

Upstream's rows are read as they are: [V@X, relation, S] where S is a variable, a constant or the
target. What cannot be read is a fault with its place, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from espalier.records import DataError
from espalier.synthesis.webshaper.formalism.kinds import EXPLANATIONS, MAX_ENTRIES, Kind
from espalier.synthesis.webshaper.formalism.terms import (
    Term,
    TermError,
    is_target,
    mentions_entity,
    parse_term,
    print_term,
)

_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Entry:
    """`relation` runs from the first item to the third."""

    subject: Term
    relation: str
    object: Term


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, and the entry where it is; no entry where the whole is at fault."""

    kind: Kind
    entry: int | None = None
    found: str = ""

    def __str__(self) -> str:
        """What is wrong, where, in one line."""
        where = "" if self.entry is None else f"entry {self.entry + 1}: "
        return f"{where}{self.kind}: {EXPLANATIONS[self.kind]}" + (
            f" ({self.found})" if self.found else ""
        )


class FormalismError(DataError):
    """A formalization that cannot be read; `faults` lists every reason."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__(f"not a formalization: {'; '.join(map(str, faults))}")
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Reading:
    """What could be read of a row, and what could not."""

    entries: Mapping[int, Entry]
    """Place in the row, from 0 -> entry; places of unreadable entries are missing."""
    faults: tuple[Fault, ...]


def parse(rows: object) -> tuple[Entry, ...]:
    """The entries of a formalization.

    Raises:
        FormalismError: an entry that cannot be read.
    """
    reading = read(rows)
    if reading.faults:
        raise FormalismError(reading.faults)
    return tuple(reading.entries.values())


def printed(entries: tuple[Entry, ...]) -> list[list[str]]:
    """The rows that `parse` reads back as `entries`."""
    return [[print_term(e.subject), e.relation, print_term(e.object)] for e in entries]


def read(rows: object) -> Reading:
    """Entry by entry, whatever `rows` is: it may come from a model."""
    if not isinstance(rows, list):
        return Reading({}, (Fault(Kind.NOT_A_LIST, found=_shown(rows)),))
    rows = cast("list[object]", rows)
    if not rows:
        return Reading({}, (Fault(Kind.NO_ENTRY),))
    if len(rows) > MAX_ENTRIES:
        return Reading({}, (Fault(Kind.TOO_MANY_ENTRIES, found=str(len(rows))),))
    entries: dict[int, Entry] = {}
    faults: list[Fault] = []
    for number, row in enumerate(rows):
        entry, found = _entry(row, number)
        faults += found
        if entry is not None:
            entries[number] = entry
    return Reading(entries, tuple(faults))


def _entry(row: object, number: int) -> tuple[Entry | None, list[Fault]]:
    """The entry of a row, or every fault of its items."""
    if not isinstance(row, list):
        return None, [Fault(Kind.ENTRY_NOT_A_LIST, number, _shown(row))]
    items = cast("list[object]", row)
    if len(items) != 3:
        return None, [Fault(Kind.ENTRY_NOT_THREE_ITEMS, number, f"{len(items)} items")]
    faults: list[Fault] = []
    terms: list[Term] = []
    relation = ""
    for position, item in enumerate(items):
        if not isinstance(item, str):
            faults.append(Fault(Kind.ITEM_NOT_TEXT, number, _shown(item)))
        elif position == 1:
            relation = item
            faults += (Fault(kind, number, _shown(item)) for kind in _relation_kinds(item))
        else:
            try:
                terms.append(parse_term(item))
            except TermError as error:
                faults += (Fault(kind, number, _shown(item)) for kind in error.kinds)
    return (None, faults) if faults else (Entry(terms[0], relation, terms[1]), [])


def _relation_kinds(relation: str) -> Iterator[Kind]:
    if not relation.strip():
        yield Kind.BLANK_RELATION
    if mentions_entity(relation) or is_target(relation):
        yield Kind.ENTITY_IN_RELATION


def _shown(found: object) -> str:
    """The beginning of what was found, on one line of ASCII."""
    text = ascii(found) if isinstance(found, str) else type(found).__name__
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."

"""WebShaper's notation: a question as a list of [X, relation, S] entries, parsed and printed.

`V@X` is a variable, `C@Lyon` a constant, `?` or `?T` the target. An R-Union of constants is one
item, `C@{Lyon | Bonn}`. A name that would be parsed as something else is written in JSON quotes
inside braces: `C@{"MTV@home"}`. WebShaper's published rows parse unchanged; an unreadable item is
reported as a fault with its position and never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias, cast

from espalier.records import DataError


class FaultKind(StrEnum):
    """A kind of fault, in the order of reporting."""

    NOT_A_LIST = "not_a_list"
    NO_ENTRY = "no_entry"
    TOO_MANY_ENTRIES = "too_many_entries"
    ENTRY_NOT_A_LIST = "entry_not_a_list"
    ENTRY_NOT_THREE_ITEMS = "entry_not_three_items"
    ITEM_NOT_TEXT = "item_not_text"
    BLANK_RELATION = "blank_relation"
    ENTITY_IN_RELATION = "entity_in_relation"
    UNMARKED_ENTITY = "unmarked_entity"
    NAMELESS_ENTITY = "nameless_entity"
    SEVERAL_ENTITIES = "several_entities"
    BROKEN_SET = "broken_set"
    REPEATED_MEMBER = "repeated_member"
    CONSTANT_CONSTANT_EDGE = "constant_constant_edge"
    CONSTANT_BESIDE_TARGET = "constant_beside_target"
    REPEATED_ENTRY = "repeated_entry"
    ENTRY_ABOUT_ITSELF = "entry_about_itself"
    NO_TARGET = "no_target"
    SEVERAL_TARGETS = "several_targets"
    DISCONNECTED = "disconnected"
    CYCLE = "cycle"
    LEAF_VARIABLE = "leaf_variable"


WHOLE_ROW_KINDS = frozenset(
    {
        FaultKind.NO_TARGET,
        FaultKind.SEVERAL_TARGETS,
        FaultKind.DISCONNECTED,
        FaultKind.CYCLE,
        FaultKind.LEAF_VARIABLE,
    }
)
"""Faults of the row as a whole; judged only if every entry can be read."""

MAX_ENTRIES = 200
"""Limit of entries, because graph walks may recurse; questions in the public rows have up to 45."""

EXPLANATIONS: Mapping[FaultKind, str] = {
    FaultKind.NOT_A_LIST: "the formalization is no list of entries",
    FaultKind.NO_ENTRY: "the formalization is empty",
    FaultKind.TOO_MANY_ENTRIES: f"more than {MAX_ENTRIES} entries",
    FaultKind.ENTRY_NOT_A_LIST: "an entry is no list",
    FaultKind.ENTRY_NOT_THREE_ITEMS: "an entry is not [X, relation, S]",
    FaultKind.ITEM_NOT_TEXT: "an item of an entry is no text",
    FaultKind.BLANK_RELATION: "an entry has no relation",
    FaultKind.ENTITY_IN_RELATION: "a relation names an entity: the entry joins more than two",
    FaultKind.UNMARKED_ENTITY: "an item does not begin with V@ or C@, and is not ?",
    FaultKind.NAMELESS_ENTITY: "no name follows V@ or C@",
    FaultKind.SEVERAL_ENTITIES: "one item holds several entities",
    FaultKind.BROKEN_SET: "a set of constants with an open quote or a blank member",
    FaultKind.REPEATED_MEMBER: "a set names a constant twice",
    FaultKind.CONSTANT_CONSTANT_EDGE: "redundant: two constants constrain each other",
    FaultKind.CONSTANT_BESIDE_TARGET: "shortcut: a constant is next to the target",
    FaultKind.REPEATED_ENTRY: "an entry is given twice",
    FaultKind.ENTRY_ABOUT_ITSELF: "an entry relates a variable to itself",
    FaultKind.NO_TARGET: "the question has no target",
    FaultKind.SEVERAL_TARGETS: "the question has several targets",
    FaultKind.DISCONNECTED: "an entry has no path to the target",
    FaultKind.CYCLE: "variables in a cycle: no nested projections",
    FaultKind.LEAF_VARIABLE: "a branch ends in a variable, not in a constant",
}


_TARGET = re.compile(r"\?\w*")
_MARK = re.compile(r"[VC]@")
_SEPARATOR = " | "
_QUOTED = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Variable:
    """An entity that the question mentions without its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Named:
    """One entity that the question names, or several as alternatives (an R-Union)."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The entity that the question asks for; WebShaper writes it without a name."""

    name: str = "T"


Term: TypeAlias = Variable | Named | Target


class TermError(ValueError):
    """A text that is not a term; `kinds` lists every reason."""

    def __init__(self, kinds: Iterable[FaultKind]) -> None:
        self.kinds = tuple(dict.fromkeys(kinds))
        super().__init__(", ".join(self.kinds))


def parse_term(text: str) -> Term:
    """Parse the first or third item of an entry.

    Raises:
        TermError: the item is not a term; the error lists every kind of fault.
    """
    if is_target(text):
        return Target(text[1:])
    mark, name = text[:2], text[2:]
    if mark not in ("V@", "C@"):
        several = (FaultKind.SEVERAL_ENTITIES,) if len(_MARK.findall(text)) > 1 else ()
        raise TermError((FaultKind.UNMARKED_ENTITY, *several))
    if not name.strip():
        raise TermError((FaultKind.NAMELESS_ENTITY,))
    members = _members(name) if mark == "C@" else None
    if members is not None:
        return Named(members)
    if mentions_entity(name):
        raise TermError((FaultKind.SEVERAL_ENTITIES,))
    return Variable(name) if mark == "V@" else Named((name,))


def is_target(text: str) -> bool:
    """Whether `text` marks the target: "?" or "?name"."""
    return _TARGET.fullmatch(text) is not None


def mentions_entity(text: str) -> bool:
    """Whether `text` contains V@ or C@ anywhere."""
    return _MARK.search(text) is not None


def print_term(term: Term) -> str:
    """The text that `parse_term` reads back as `term`.

    Raises:
        ValueError: the name of a variable or target cannot be written.
    """
    match term:
        case Target(name):
            text = f"?{name}"
        case Variable(name):
            text = f"V@{name}"
        case Named((name,)):
            text = f"C@{name}"
            if not _reads_back(text, term):
                text = f"C@{{{json.dumps(name, ensure_ascii=False)}}}"
        case Named(names):
            text = f"C@{{{_SEPARATOR.join(map(_member, names))}}}"
    if not _reads_back(text, term):
        raise ValueError(f"{term} cannot be written: its name is blank, marked or repeated")
    return text


def _reads_back(text: str, term: Term) -> bool:
    try:
        return parse_term(text) == term
    except TermError:
        return False


def _member(name: str) -> str:
    plain = not (mentions_entity(name) or "|" in name or name.startswith('"'))
    return name if plain and name == name.strip() else json.dumps(name, ensure_ascii=False)


class _Member(NamedTuple):
    """A member of a set, and the position in the text where the next one begins."""

    name: str
    next_start: int
    fault: FaultKind | None = None


def _members(name: str) -> tuple[str, ...] | None:
    """The members of a set in braces; None if the name is not a set.

    Raises:
        TermError: a quote does not close, or a member is blank, marked or repeated.
    """
    if not (name.startswith("{") and name.endswith("}")) or len(name) < 2:
        return None
    inner = name[1:-1]
    if _SEPARATOR not in inner and not inner.startswith('"'):
        return None
    found: list[str] = []
    faults: list[FaultKind] = []
    position = 0
    while position <= len(inner):
        member, position, fault = _next_member(inner, position)
        if fault is not None:
            faults.append(fault)
        found.append(member)
    if len(set(found)) < len(found):
        faults.append(FaultKind.REPEATED_MEMBER)
    if faults:
        raise TermError(faults)
    return tuple(found)


def _next_member(inner: str, start: int) -> _Member:
    if not inner.startswith('"', start):
        end = inner.find(_SEPARATOR, start)
        end = len(inner) if end < 0 else end
        name = inner[start:end]
        fault = FaultKind.SEVERAL_ENTITIES if mentions_entity(name) else _blank(name)
        return _Member(name, end + len(_SEPARATOR), fault)
    try:
        name, end = _QUOTED.raw_decode(inner, start)
    except ValueError:
        # the end of an open quote is unknown, so the rest counts as this member
        return _Member(inner[start:], len(inner) + 1, FaultKind.BROKEN_SET)
    if end != len(inner) and not inner.startswith(_SEPARATOR, end):
        return _Member(inner[start:], len(inner) + 1, FaultKind.BROKEN_SET)
    return _Member(name, end + len(_SEPARATOR), _blank(name))


def _blank(name: str) -> FaultKind | None:
    return None if name.strip() else FaultKind.BROKEN_SET


_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry [X, relation, S]: the relation leads from the subject to the object."""

    subject: Term
    relation: str
    object: Term


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, and the position of its entry; None for a fault of the whole row."""

    kind: FaultKind
    entry: int | None = None
    found: str = ""

    def __str__(self) -> str:
        """One line with position, kind, explanation and the text found."""
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
class ParsedRow:
    """The entries of a row that could be read, and the faults of the others."""

    entries: Mapping[int, Entry]
    """Position in the row, from 0 -> entry; unreadable entries are missing."""
    faults: tuple[Fault, ...]


def parse(rows: object) -> tuple[Entry, ...]:
    """The entries of a formalization.

    Raises:
        FormalismError: an entry cannot be read.
    """
    reading = read_entries(rows)
    if reading.faults:
        raise FormalismError(reading.faults)
    return tuple(reading.entries.values())


def rows_of(entries: tuple[Entry, ...]) -> list[list[str]]:
    """The rows that `parse` reads back as `entries`."""
    return [[print_term(e.subject), e.relation, print_term(e.object)] for e in entries]


def read_entries(rows: object) -> ParsedRow:
    """Parse entry by entry; `rows` may be any JSON value, because a model may have written it."""
    if not isinstance(rows, list):
        return ParsedRow({}, (Fault(FaultKind.NOT_A_LIST, found=_shown(rows)),))
    rows = cast("list[object]", rows)
    if not rows:
        return ParsedRow({}, (Fault(FaultKind.NO_ENTRY),))
    if len(rows) > MAX_ENTRIES:
        return ParsedRow({}, (Fault(FaultKind.TOO_MANY_ENTRIES, found=str(len(rows))),))
    entries: dict[int, Entry] = {}
    faults: list[Fault] = []
    for number, row in enumerate(rows):
        entry, found = _entry(row, number)
        faults += found
        if entry is not None:
            entries[number] = entry
    return ParsedRow(entries, tuple(faults))


def _entry(row: object, number: int) -> tuple[Entry | None, list[Fault]]:
    """The parsed entry, or None and every fault of its items."""
    if not isinstance(row, list):
        return None, [Fault(FaultKind.ENTRY_NOT_A_LIST, number, _shown(row))]
    items = cast("list[object]", row)
    if len(items) != 3:
        return None, [Fault(FaultKind.ENTRY_NOT_THREE_ITEMS, number, f"{len(items)} items")]
    faults: list[Fault] = []
    terms: list[Term] = []
    relation = ""
    for position, item in enumerate(items):
        if not isinstance(item, str):
            faults.append(Fault(FaultKind.ITEM_NOT_TEXT, number, _shown(item)))
        elif position == 1:
            relation = item
            if not relation.strip():
                faults.append(Fault(FaultKind.BLANK_RELATION, number, _shown(item)))
            if mentions_entity(relation) or is_target(relation):
                faults.append(Fault(FaultKind.ENTITY_IN_RELATION, number, _shown(item)))
        else:
            try:
                terms.append(parse_term(item))
            except TermError as error:
                faults += (Fault(kind, number, _shown(item)) for kind in error.kinds)
    return (None, faults) if faults else (Entry(terms[0], relation, terms[1]), [])


def _shown(found: object) -> str:
    """The beginning of a found value, on one line of ASCII."""
    text = ascii(found) if isinstance(found, str) else type(found).__name__
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."

"""The items of an entry: variables, constants and the target, as they are written and read.

`V@X` is a variable, `C@Lyon` a constant, `?` or `?T` the target. An R-Union of constants is one
item, `C@{Lyon | Bonn}`. A name that would be read as something else stands in JSON quotes inside
braces: `C@{"MTV@home"}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from espalier.synthesis.webshaper.formalism.kinds import Kind

_TARGET = re.compile(r"\?\w*")
_MARK = re.compile(r"[VC]@")
_SEPARATOR = " | "
_QUOTED = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Variable:
    """Something that the question speaks of and does not name."""

    name: str


@dataclass(frozen=True, slots=True)
class Named:
    """One entity that the question names, or several that stand for each other (an R-Union)."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked for; upstream writes it without a name."""

    name: str = "T"


Term: TypeAlias = Variable | Named | Target


class TermError(ValueError):
    """A text that is not a term; `kinds` lists every reason."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self.kinds = tuple(dict.fromkeys(kinds))
        super().__init__(", ".join(self.kinds))


def parse_term(text: str) -> Term:
    """Parse the first or third item of an entry.

    Raises:
        TermError: with every kind of fault that the item has.
    """
    if is_target(text):
        return Target(text[1:])
    mark, name = text[:2], text[2:]
    if mark not in ("V@", "C@"):
        several = (Kind.SEVERAL_ENTITIES,) if mentions_entity(text) else ()
        raise TermError((Kind.UNMARKED_ENTITY, *several))
    if not name.strip():
        raise TermError((Kind.NAMELESS_ENTITY,))
    members = _members(name) if mark == "C@" else None
    if members is not None:
        return Named(members)
    if mentions_entity(name):
        raise TermError((Kind.SEVERAL_ENTITIES,))
    return Variable(name) if mark == "V@" else Named((name,))


def is_target(text: str) -> bool:
    """Whether `text` is the mark of what is asked for: "?" or "?name"."""
    return _TARGET.fullmatch(text) is not None


def mentions_entity(text: str) -> bool:
    """Whether V@ or C@ stands anywhere in `text`."""
    return _MARK.search(text) is not None


def print_term(term: Term) -> str:
    """The text that `parse_term` reads back as `term`.

    Raises:
        ValueError: a variable or target whose name cannot be written.
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
    fault: Kind | None = None


def _members(name: str) -> tuple[str, ...] | None:
    """The members of a set in braces; None where the name is not a set.

    Raises:
        TermError: a quote that does not close, a blank, marked or repeated member.
    """
    if not (name.startswith("{") and name.endswith("}")) or len(name) < 2:
        return None
    inner = name[1:-1]
    if _SEPARATOR not in inner and not inner.startswith('"'):
        return None
    found: list[str] = []
    faults: list[Kind] = []
    position = 0
    while position <= len(inner):
        member, position, fault = _next_member(inner, position)
        if fault is not None:
            faults.append(fault)
        found.append(member)
    if len(set(found)) < len(found):
        faults.append(Kind.REPEATED_MEMBER)
    if faults:
        raise TermError(faults)
    return tuple(found)


def _next_member(inner: str, start: int) -> _Member:
    if not inner.startswith('"', start):
        end = inner.find(_SEPARATOR, start)
        end = len(inner) if end < 0 else end
        name = inner[start:end]
        fault = Kind.SEVERAL_ENTITIES if mentions_entity(name) else _blank(name)
        return _Member(name, end + len(_SEPARATOR), fault)
    try:
        name, end = _QUOTED.raw_decode(inner, start)
    except ValueError:
        # where the open quote would have closed is unknown: the rest is this member
        return _Member(inner[start:], len(inner) + 1, Kind.BROKEN_SET)
    if end != len(inner) and not inner.startswith(_SEPARATOR, end):
        return _Member(inner[start:], len(inner) + 1, Kind.BROKEN_SET)
    return _Member(name, end + len(_SEPARATOR), _blank(name))


def _blank(name: str) -> Kind | None:
    return None if name.strip() else Kind.BROKEN_SET

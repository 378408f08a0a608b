"""The items of an entry: variables, constants and the target, as they are written and read.

`V@X` is a variable, `C@Lyon` a constant, `?` or `?T` the target. An R-Union of constants is one
item, `C@{Lyon | Bonn}`. A name that would be read as something else stands in JSON quotes inside
braces: `C@{"MTV@home"}`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TypeAlias

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
    """A text that is no item of an entry; `kind` says why."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind.value)
        self.kind = kind


def parse_term(text: str) -> Term:
    """The item that `text` writes.

    Raises:
        TermError: with the kind of fault.
    """
    if _TARGET.fullmatch(text):
        return Target(text[1:])
    mark, name = text[:2], text[2:]
    if mark not in ("V@", "C@"):
        raise TermError(Kind.UNMARKED_ENTITY)
    if not name.strip():
        raise TermError(Kind.NAMELESS_ENTITY)
    members = _members(name) if mark == "C@" else None
    if members is not None:
        return Named(members)
    if _MARK.search(name):
        raise TermError(Kind.SEVERAL_ENTITIES)
    return Variable(name) if mark == "V@" else Named((name,))


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
    plain = not (_MARK.search(name) or "|" in name or name.startswith('"'))
    return name if plain and name == name.strip() else json.dumps(name, ensure_ascii=False)


def _members(name: str) -> tuple[str, ...] | None:
    """The members of a set in braces; None where the name is no set.

    Raises:
        TermError: a quote that does not close, a blank member, a member twice.
    """
    if not (name.startswith("{") and name.endswith("}")) or len(name) < 2:
        return None
    inner = name[1:-1]
    if _SEPARATOR not in inner and not inner.startswith('"'):
        return None
    found: list[str] = []
    position = 0
    while position <= len(inner):
        member, position = _next_member(inner, position)
        if not member.strip():
            raise TermError(Kind.BROKEN_SET)
        found.append(member)
    if len(set(found)) < len(found):
        raise TermError(Kind.REPEATED_MEMBER)
    return tuple(found)


def _next_member(inner: str, start: int) -> tuple[str, int]:
    """A member and where the next one begins; beyond the end after the last."""
    if not inner.startswith('"', start):
        end = inner.find(_SEPARATOR, start)
        end = len(inner) if end < 0 else end
        if _MARK.search(inner, start, end):
            raise TermError(Kind.SEVERAL_ENTITIES)
        return inner[start:end], end + len(_SEPARATOR)
    try:
        member, end = _QUOTED.raw_decode(inner, start)
    except ValueError as error:
        raise TermError(Kind.BROKEN_SET) from error
    if end != len(inner) and not inner.startswith(_SEPARATOR, end):
        raise TermError(Kind.BROKEN_SET)
    return member, end + len(_SEPARATOR)

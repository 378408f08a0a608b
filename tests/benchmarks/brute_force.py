"""Answers of formal questions by SQL over bare triples; nothing of espalier's synthesis.

Questions come as the text that a task file holds, `currency(country([city:1]))`, and are read here
by a parser of their own. Every step is one query to sqlite; every form of shortcut and redundancy
is looked for by leaving parts of the question out and asking the database again.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import NamedTuple

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[\[\]()|&+]|[^\[\]()|&+"\s][^\[\]()|&+"]*)')


class Node(NamedTuple):
    """`kind` is names, step, and, or: a set of constants, a projection, a join of parts."""

    kind: str
    names: tuple[str, ...] = ()
    relation: str = ""
    parts: tuple[Node, ...] = ()


class Store:
    """The triples of a knowledge artifact in a database of their own."""

    def __init__(self, triples: Iterable[tuple[str, str, str]]) -> None:
        self._database = sqlite3.connect(":memory:")
        self._database.execute("create table triple (s text, r text, o text)")
        self._database.executemany("insert into triple values (?, ?, ?)", triples)
        self._database.execute("create index by_subject on triple (r, s)")

    def objects(self, relations: tuple[str, ...], subjects: frozenset[str]) -> frozenset[str]:
        """What any of the subjects has as any of the relations."""
        if not subjects:
            return frozenset()
        query = (
            f"select distinct o from triple where r in ({_marks(relations)}) "
            f"and s in ({_marks(subjects)})"
        )
        return frozenset(o for (o,) in self._database.execute(query, (*relations, *subjects)))


def _marks(values: Iterable[str]) -> str:
    return ",".join("?" for _ in values)


def parsed(text: str) -> Node:
    """The question that the text writes."""
    tokens = [match.group(1).strip() for match in _TOKEN.finditer(text)]
    node, rest = _expression(tokens)
    if rest:
        raise ValueError(f"{text}: {rest} is left over")
    return node


def answers(node: Node, store: Store, skipped: frozenset[int] = frozenset()) -> frozenset[str]:
    """The set that the question asks for; steps whose id is in `skipped` are left out."""
    if node.kind == "names":
        return frozenset(node.names)
    found = [answers(part, store, skipped) for part in node.parts]
    if node.kind == "step":
        return found[0] if id(node) in skipped else store.objects((node.relation,), found[0])
    return frozenset.intersection(*found) if node.kind == "and" else frozenset.union(*found)


def nodes(node: Node) -> Iterator[Node]:
    """The node and everything below."""
    yield node
    for part in node.parts:
        yield from nodes(part)


def depth(node: Node) -> int:
    """Steps on the longest way to a constant."""
    return (node.kind == "step") + max(map(depth, node.parts), default=0)


def faults(node: Node, store: Store) -> list[str]:
    """Redundant edges and shortcuts, each by its own count."""
    whole = answers(node, store)
    found: list[str] = []
    for inner in nodes(node):
        if inner.kind in ("and", "or") and any(part.kind == "names" for part in inner.parts):
            found.append("redundant: constant beside constant")
    for smaller in _without_a_part(node):
        if answers(smaller, store) == whole:
            found.append("redundant: a constraint changes nothing")
    if depth(node) > 1 and any(_is_bare(part) for part in _at_target(node)):
        found.append("shortcut: constant beside the target")
    steps = [inner for inner in nodes(node) if inner.kind == "step"]
    for number in range(1, len(steps)):
        for left_out in combinations(steps, number):
            if answers(node, store, frozenset(map(id, left_out))) == whole:
                found.append("shortcut: steps can be left out")
    mentioned = {name for inner in nodes(node) for name in inner.names}
    read = [answers(inner.parts[0], store) for inner in steps]
    if whole & mentioned.union(*read):
        found.append("shortcut: the answer is met on the way")
    return found


def _at_target(node: Node) -> list[Node]:
    if node.kind in ("and", "or"):
        return [inner for part in node.parts for inner in _at_target(part)]
    return [node]


def _is_bare(node: Node) -> bool:
    return node.kind == "names" or node.parts[0].kind == "names"


def _without_a_part(node: Node) -> Iterator[Node]:
    for position, part in enumerate(node.parts):
        rest = node.parts[:position] + node.parts[position + 1 :]
        if node.kind == "and" and rest:
            yield node._replace(parts=rest)
        for smaller in _without_a_part(part):
            yield node._replace(
                parts=(*node.parts[:position], smaller, *node.parts[position + 1 :])
            )


def _expression(tokens: list[str]) -> tuple[Node, list[str]]:
    head, rest = tokens[0], tokens[1:]
    if head == "[":
        end = rest.index("]")
        names = tuple(_unquoted(token) for token in rest[:end] if token != "|")
        return Node("names", names=names), rest[end + 1 :]
    if head != "(":
        inner, rest = _expression(rest[1:])
        return Node("step", relation=_unquoted(head), parts=(inner,)), rest[1:]
    part, rest = _expression(rest)
    parts, joint = [part], ""
    while rest[0] != ")":
        joint = rest[0]
        part, rest = _expression(rest[1:])
        parts.append(part)
    return Node("and" if joint == "&" else "or", parts=tuple(parts)), rest[1:]


def _unquoted(token: str) -> str:
    return json.loads(token) if token.startswith('"') else token

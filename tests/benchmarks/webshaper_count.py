"""Faults of WebShaper rows, counted anew: plain string and set work, nothing of espalier."""

from __future__ import annotations

from collections import Counter

MARKS = ("V@", "C@")
UNREADABLE = {"entry_not_three_items", "entity_in_relation", "unmarked_entity", "several_entities"}
"""Kinds that leave an entry without two ends and a relation."""


def kinds_of(rows: list[list[str]]) -> set[str]:
    """The kinds of fault of one upstream row."""
    kinds = {"entry_not_three_items" for row in rows if len(row) != 3}
    edges = [(row[0], row[1], row[2]) for row in rows if len(row) == 3]
    kinds |= {"entity_in_relation" for _, relation, _ in edges if _has_mark(relation)}
    ends = [end for a, _, b in edges for end in (a, b)]
    kinds |= {"unmarked_entity" for end in ends if end[:2] not in MARKS and end != "?"}
    kinds |= {"several_entities" for end in ends if _has_several(end)}
    edges = [
        (a, relation, b)
        for a, relation, b in edges
        if _is_one(a) and _is_one(b) and not _has_mark(relation)
    ]
    kinds |= {"constant_constant_edge" for a, _, b in edges if a[:2] == b[:2] == "C@"}
    kinds |= {"constant_beside_target" for a, _, b in edges if {a[:2], b[:2]} == {"C@", "?"}}
    kinds |= {"entry_about_itself" for a, _, b in edges if a == b and a[:2] != "C@"}
    kinds |= {"repeated_entry" for number in Counter(edges).values() if number > 1}
    return kinds if kinds & UNREADABLE else kinds | _of_the_whole(list(dict.fromkeys(edges)))


def _has_mark(text: str) -> bool:
    return any(mark in text for mark in MARKS)


def _has_several(end: str) -> bool:
    """Whether there are two marks: words around one entity are no second one."""
    return sum(end.count(mark) for mark in MARKS) > 1


def _is_one(end: str) -> bool:
    return end == "?" or (end[:2] in MARKS and not _has_mark(end[2:]))


def _of_the_whole(edges: list[tuple[str, str, str]]) -> set[str]:
    """Connection by merging sets: an entry inside one set closes a cycle."""
    kinds: set[str] = set()
    part = {end: {end} for a, _, b in edges for end in (a, b) if end[:2] != "C@"}
    for a, _, b in edges:
        if "C@" in (a[:2], b[:2]) or a == b:
            continue
        if part[a] is part[b]:
            kinds.add("cycle")
        else:
            merged = part[a] | part[b]
            part.update(dict.fromkeys(merged, merged))
    if "?" not in part:
        kinds.add("no_target")
    if len({id(found) for found in part.values()}) > 1:
        kinds.add("disconnected")
    for end in part:
        beside = [b if a == end else a for a, _, b in edges if end in (a, b) and a != b]
        if end[:2] == "V@" and len(beside) == 1 and beside[0][:2] != "C@":
            kinds.add("leaf_variable")
    return kinds

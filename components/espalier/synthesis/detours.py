"""Mistakes that a teacher makes on the way, and recovers from."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from espalier.knowledge.folding import folded_name
from espalier.knowledge.search import NO_RESULTS
from espalier.synthesis import plans
from espalier.synthesis.observations import hits, values

EMPTY_RESULT = "empty_result"
WRONG_DOCUMENT = "wrong_document"
BAD_QUERY = "bad_query"
KINDS = (BAD_QUERY, EMPTY_RESULT, WRONG_DOCUMENT)
"""Right document without the line; nothing found; another document than the one meant."""

_LETTERS = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True)
class Lookup:
    """The search that a detour goes before."""

    name: str
    label: str
    previous_name: str
    """The entity read before; empty at the first search."""
    later_labels: tuple[str, ...]


def detour_query(
    lookup: Lookup, kind: str, observe: Callable[[str], str], rng: random.Random
) -> str | None:
    """A query that goes wrong in the way of `kind`, tried on the tool; None where none does."""
    for query in _RECIPES[kind](lookup, rng):
        if outcome(observe(query), lookup) == kind:
            return query
    return None


def outcome(observation: str, lookup: Lookup) -> str:
    """How a search for `lookup` went: a kind of detour, or empty where the line was found."""
    if observation == NO_RESULTS:
        return EMPTY_RESULT
    if values(observation, lookup.name, lookup.label) is not None:
        return ""
    titles = {folded_name(hit.title) for hit in hits(observation)}
    return BAD_QUERY if folded_name(lookup.name) in titles else WRONG_DOCUMENT


def misspelled(name: str, rng: random.Random) -> str:
    """The name with two letters inside its longest word swapped, or one of them missing."""
    word = max(_LETTERS.findall(name), key=len, default=name)
    start = name.index(word)
    position = start + rng.randrange(min(1, len(word) - 1), max(len(word) - 1, 1))
    before, here, after = name[:position], name[position], name[position + 1 :]
    return before + after if rng.random() < 0.5 else before + after[:1] + here + after[1:]


def _bad_queries(lookup: Lookup, rng: random.Random) -> Iterator[str]:
    later = list(dict.fromkeys(lookup.later_labels[::-1]))
    for label in later:
        yield plans.search_query(lookup.name, label)
    yield lookup.name


def _empty_queries(lookup: Lookup, rng: random.Random) -> Iterator[str]:
    for _ in range(8):
        yield misspelled(lookup.name, rng)


def _stray_queries(lookup: Lookup, rng: random.Random) -> Iterator[str]:
    if lookup.previous_name:
        yield plans.search_query(lookup.previous_name, lookup.label)
    for _ in range(4):
        yield plans.search_query(misspelled(lookup.name, rng), lookup.label)
    yield lookup.label


_RECIPES: dict[str, Callable[[Lookup, random.Random], Iterator[str]]] = {
    BAD_QUERY: _bad_queries,
    EMPTY_RESULT: _empty_queries,
    WRONG_DOCUMENT: _stray_queries,
}

"""The pattern of a question, and its neighbours: the same, one hop more, one hop less.

currency(country(C))      one hop more     capital_currency(country(nearest(C))), ...
                          one hop less     country(C), currency(C)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Literal

from espalier.knowledge import KnowledgeGraph
from espalier.synthesis.webshaper.pools import Chain, Join, chains, intersections, project, unions
from espalier.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Query,
    signature,
)
from espalier.synthesis.webshaper.steps import Path, inverse_pairs

Pattern = Chain | Join
Variation = Literal["other_entities", "one_hop_more", "one_hop_less"]
_LONGEST_CHAIN = 5
"""One hop more than the chains that questions are drawn from at first."""


class Patterns:
    """Every pattern that questions are drawn from, and one hop more, by signature."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self._graph = graph

    def of(self, signature_text: str) -> Pattern | None:
        """The pattern whose queries have this signature; None where it has another shape."""
        return self._by_signature.get(signature_text)

    def variations(self, pattern: Pattern) -> dict[Variation, list[Pattern]]:
        """The pattern itself, and those with a projection more or less that the kinds allow."""
        found: dict[Variation, list[Pattern]] = {"other_entities": [pattern]}
        if isinstance(pattern, Chain):
            if len(pattern.path) < _LONGEST_CHAIN:
                found["one_hop_more"] = [Chain(path) for path in self._longer(pattern.path)]
            shorter = (pattern.path[1:], pattern.path[:-1])
            found["one_hop_less"] = [Chain(path) for path in dict.fromkeys(shorter) if path]
        else:
            if len(pattern.tail) < _longest_tail(pattern):
                found["one_hop_more"] = self._led_on(pattern)
            # without a tail, arms of one projection would put constants beside the target
            if len(pattern.tail) == _longest_tail(pattern):
                found["one_hop_less"] = [replace(pattern, tail=pattern.tail[:-1])]
        return {variation: patterns for variation, patterns in found.items() if patterns}

    @cached_property
    def _by_signature(self) -> Mapping[str, Pattern]:
        lengths = range(1, _LONGEST_CHAIN + 1)
        joins = [*intersections(self._graph), *unions(self._graph)]
        patterns: list[Pattern] = [c for length in lengths for c in chains(self._graph, length)]
        patterns += [*joins, *(longer for join in joins for longer in self._led_on(join))]
        by_signature: dict[str, Pattern] = {}
        for pattern in patterns:
            by_signature.setdefault(signature(_specimen(pattern)), pattern)
        return by_signature

    @cached_property
    def _inverses(self) -> set[tuple[str, str]]:
        return inverse_pairs(self._graph)

    def _longer(self, path: Path) -> list[Path]:
        """`path` with one relation more at either end."""
        first = self._graph.relations[path[0]]
        before = [
            (name, *path)
            for name, relation in sorted(self._graph.relations.items())
            if relation.object_kind == first.subject_kind and (name, path[0]) not in self._inverses
        ]
        return before + [(*path, name) for name in self._behind(path[-1])]

    def _led_on(self, join: Join) -> list[Pattern]:
        """`join` with one projection more behind what it leads to."""
        last = (*join.arms[0], *join.tail)[-1]
        return [replace(join, tail=(*join.tail, name)) for name in self._behind(last)]

    def _behind(self, relation: str) -> list[str]:
        """Relations that lead on from what `relation` leads to, and not back."""
        kind = self._graph.relations[relation].object_kind
        return [
            name
            for name, following in sorted(self._graph.relations.items())
            if following.subject_kind == kind and (relation, name) not in self._inverses
        ]


def _longest_tail(join: Join) -> int:
    """One more than joins are drawn with: arms of two projections have none there, others one."""
    return 1 if len(join.arms[0]) > 1 else 2


def _specimen(pattern: Pattern) -> Query:
    """A query of the pattern's shape, about nothing."""
    if isinstance(pattern, Chain):
        return project(pattern.path, Constant("a"))
    start: Query = ConstantSet(("a", "b")) if pattern.with_union else Constant("a")
    arms = (project(pattern.arms[0], start), project(pattern.arms[1], Constant("c")))
    return project(pattern.tail, Intersection(arms))

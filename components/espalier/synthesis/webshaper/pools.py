"""Where queries of one signature come from: a path of a chain, or the arms of a join."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from espalier.knowledge import KnowledgeGraph
from espalier.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
)
from espalier.synthesis.webshaper.steps import Path, Steps, typed_paths

_DRAWS_PER_JOIN = 20_000
"""Upper end of the attempts at one signature; the generator gives up much earlier."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Projections one after the other, from one constant."""

    path: Path

    def queries(self, steps: Steps, rng: random.Random) -> Iterator[Query]:
        """Every query of the path, each once, in an order that `rng` decides."""
        starts = steps.starts(self.path)
        for position in _permutation(len(starts), rng):
            yield project(self.path, Constant(starts[position]))


@dataclass(frozen=True, slots=True)
class Join:
    """Two lists that share one entity; `tail` leads on from it, where it is not the target itself.

    An arm is a path of one or two relations, the last of which lists several entities. Without a
    tail each arm has two, so that no constant stands beside the target.
    """

    arms: tuple[Path, Path]
    tail: Path
    with_union: bool
    """The first arm starts from either of two constants (an R-Union)."""

    def queries(self, steps: Steps, rng: random.Random) -> Iterator[Query]:
        """Random queries, repeats included; none where the arms never meet."""
        first_hosts, second_hosts = (_hosts(arm, steps) for arm in self.arms)
        meeting = [entity for entity in first_hosts if entity in second_hosts]
        if self.tail:
            meeting = [entity for entity in meeting if entity in steps.single[self.tail[0]]]
        for _ in range(_DRAWS_PER_JOIN if meeting else 0):
            entity = rng.choice(meeting)
            first = _constant(self.arms[0], rng.choice(first_hosts[entity]), steps, rng)
            second = _constant(self.arms[1], rng.choice(second_hosts[entity]), steps, rng)
            start = self._first_operand(first, steps, rng)
            arms = (project(self.arms[0], start), project(self.arms[1], Constant(second)))
            yield project(self.tail, Intersection(arms))

    def _first_operand(self, first: str, steps: Steps, rng: random.Random) -> Query:
        if not self.with_union:
            return Constant(first)
        others = list(steps.listed[self.arms[0][0]])
        return ConstantSet((first, rng.choice(others)))


def chains(graph: KnowledgeGraph, length: int) -> list[Chain]:
    """Every chain of `length` projections."""
    return [Chain(path) for path in typed_paths(graph, length)]


def intersections(graph: KnowledgeGraph) -> list[Join]:
    """Two lists, reached by one projection each, or meeting one projection before the target."""
    outer = [Join(arms, (), with_union=False) for arms in _arm_pairs(graph, 2)]
    inner = [Join(arms, tail, with_union=False) for arms, tail in _tailed(graph)]
    return outer + inner


def unions(graph: KnowledgeGraph) -> list[Join]:
    """An intersection one projection before the target, one side of which is an R-Union.

    Arms of two projections would take six searches, more than an episode's usual limit.
    """
    return [Join(arms, tail, with_union=True) for arms, tail in _tailed(graph)]


def project(path: Path, start: Query) -> Query:
    """The projections of `path` around `start`, the first one innermost."""
    for relation in path:
        start = Projection(relation, start)
    return start


def _arm_pairs(graph: KnowledgeGraph, length: int) -> list[tuple[Path, Path]]:
    """Pairs of paths to the same kind whose last relations can list several entities."""
    paths = [p for p in typed_paths(graph, length) if not graph.relations[p[-1]].functional]
    return [
        (first, second)
        for first in paths
        for second in paths
        if graph.relations[first[-1]].object_kind == graph.relations[second[-1]].object_kind
    ]


def _tailed(graph: KnowledgeGraph) -> list[tuple[tuple[Path, Path], Path]]:
    return [
        (arms, (name,))
        for arms in _arm_pairs(graph, 1)
        for name, relation in sorted(graph.relations.items())
        if relation.subject_kind == graph.relations[arms[0][-1]].object_kind
    ]


def _hosts(arm: Path, steps: Steps) -> dict[str, list[str]]:
    """Entity -> what lists it at the end of the arm, as far as a constant leads there."""
    hosts = steps.hosts(arm[-1])
    if len(arm) == 1:
        return hosts
    led_to = {
        entity: [host for host in found if steps.sources(arm[0], host)]
        for entity, found in hosts.items()
    }
    return {entity: found for entity, found in led_to.items() if found}


def _constant(arm: Path, host: str, steps: Steps, rng: random.Random) -> str:
    """A constant from which the arm leads to `host`."""
    return host if len(arm) == 1 else rng.choice(steps.sources(arm[0], host))


def _permutation(size: int, rng: random.Random) -> Iterator[int]:
    """Every position once: an affine walk, which needs no shuffled copy of a long list."""
    if not size:
        return
    offset, stride = rng.randrange(size), rng.randrange(1, size + 1)
    while math.gcd(stride, size) != 1:
        stride += 1
    for step in range(size):
        yield (offset + step * stride) % size

"""Edges, paths and signatures that questions are drawn from, for each split."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from espalier.records import Split
from espalier.records.knowledge import Entity, KnowledgeGraph
from espalier_search.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
)

RelationPath = tuple[str, ...]
"""Relations from the constant outwards."""
MAX_LISTED = 8
"""Longest list in a question; reading a longer one would be most of the work."""
_INVERSE_SHARE = 0.9
_INVERSE_SAMPLE = 100


class Steps:
    """The edges between entities that a question of one split may name or pass through.

    `single[r]` maps a subject to its only object, `listed[r]` a subject to its 2 to `MAX_LISTED`
    objects. Objects of other splits in such a list are distractors and never the answer.
    """

    def __init__(self, graph: KnowledgeGraph, split: Split) -> None:
        self.graph = graph
        self.split: Split = split
        self.single: dict[str, dict[str, str]] = {}
        self.listed: dict[str, dict[str, tuple[str, ...]]] = {}
        self.excluded: dict[str, int] = defaultdict(int)
        """Reason to leave out edges of the graph -> number of subjects."""
        self._allowed = {e.entity_id for e in graph.entities.values() if self._admits(e)}
        self._starts: dict[RelationPath, list[str]] = {}
        self._sources: dict[str, dict[str, list[str]]] = {}
        self._hosts: dict[str, dict[str, list[str]]] = {}
        subjects: dict[str, dict[str, None]] = {name: {} for name in graph.relations}
        for triple in graph.triples():
            subjects[triple.relation][triple.subject] = None
        for relation, ids in subjects.items():
            self._add_relation(relation, list(ids))

    def starts(self, path: RelationPath) -> list[str]:
        """Constants from which each step of `path` leads to a single entity, in graph order."""
        if path not in self._starts:
            step, rest = self.single[path[0]], path[1:]
            if rest:
                onward = set(self.starts(rest))
                found = [subject for subject, reached in step.items() if reached in onward]
            else:
                found = list(step)
            self._starts[path] = found
        return self._starts[path]

    def sources(self, relation: str, entity_id: str) -> list[str]:
        """Subjects whose only object of `relation` is the entity."""
        if relation not in self._sources:
            inverted: dict[str, list[str]] = defaultdict(list)
            for subject, reached in self.single[relation].items():
                inverted[reached].append(subject)
            self._sources[relation] = dict(inverted)
        return self._sources[relation].get(entity_id, [])

    def hosts(self, relation: str) -> dict[str, list[str]]:
        """Entity of the split -> subjects whose `relation` lists it among others."""
        if relation not in self._hosts:
            inverted: dict[str, list[str]] = defaultdict(list)
            for subject, objects in self.listed[relation].items():
                for reached in objects:
                    if reached in self._allowed:
                        inverted[reached].append(subject)
            self._hosts[relation] = dict(inverted)
        return self._hosts[relation]

    def admits_all(self, entity_ids: Sequence[str]) -> bool:
        """Whether each entity is askable and either of the split or a hub."""
        return self._allowed.issuperset(entity_ids)

    def holds_own_entity(self, entity_ids: Sequence[str]) -> bool:
        """Whether at least one entity is no hub; hubs belong to every split."""
        return any(not self.graph.entities[entity_id].hub for entity_id in entity_ids)

    def _admits(self, entity: Entity) -> bool:
        if not entity.askable:
            self.excluded["entity_not_askable"] += 1
            return False
        if not entity.hub and entity.split != self.split:
            self.excluded["entity_of_another_split"] += 1
            return False
        return True

    def _add_relation(self, relation: str, subjects: list[str]) -> None:
        single: dict[str, str] = {}
        listed: dict[str, tuple[str, ...]] = {}
        for subject in subjects:
            if subject not in self._allowed:
                continue
            objects = self.graph.objects(relation, subject)
            if not self.graph.entities[subject].document_id:
                self.excluded["subject_without_document"] += 1
            elif len(objects) > MAX_LISTED:
                self.excluded["list_too_long"] += 1
            elif len(objects) > 1:
                listed[subject] = objects
            elif self._allowed.issuperset(objects):
                single[subject] = next(iter(objects))
            else:
                self.excluded["object_not_admitted"] += 1
        self.single[relation], self.listed[relation] = single, listed


def typed_paths(graph: KnowledgeGraph, length: int) -> list[RelationPath]:
    """Every chain of `length` relations whose kinds fit, without a step back by an inverse."""
    inverses = inverse_pairs(graph)
    paths: list[RelationPath] = [(name,) for name in sorted(graph.relations)]
    for _ in range(length - 1):
        paths = [
            (*path, name)
            for path in paths
            for name in sorted(graph.relations)
            if graph.relations[name].subject_kind == graph.relations[path[-1]].object_kind
            and (path[-1], name) not in inverses
        ]
    return paths


def inverse_pairs(graph: KnowledgeGraph) -> set[tuple[str, str]]:
    """Pairs of relations (r, s) where s mostly leads from r's object back to r's subject."""
    samples: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for triple in graph.triples():
        if len(samples[triple.relation]) < _INVERSE_SAMPLE:
            samples[triple.relation].append((triple.subject, triple.object))
    return {
        (first, second)
        for first, edges in samples.items()
        for second in graph.relations
        if sum((s in graph.objects(second, o)) for s, o in edges) >= _INVERSE_SHARE * len(edges)
    }


_DRAWS_PER_JOIN = 20_000
"""Upper bound of draws per signature; the generator gives up much earlier (MAX_FAILURES)."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A signature: projections one after the other, from one constant.

    Its repr is part of the seed of bulk drawing (`synthesis.bulk_parts`), so renaming the class or
    a field changes the questions drawn. The same holds for `Join`.
    """

    path: RelationPath

    def queries(self, steps: Steps, rng: random.Random) -> Iterator[Query]:
        """Every query of the path once, in an order drawn from `rng`."""
        starts = steps.starts(self.path)
        for position in _permutation(len(starts), rng):
            yield project(self.path, Constant(starts[position]))


@dataclass(frozen=True, slots=True)
class Join:
    """A signature: two lists that share one entity, from which `tail` leads to the target.

    An arm is a path of one or two relations, the last of which lists several entities. Without a
    tail each arm has two, so that no constant is next to the target.
    """

    arms: tuple[RelationPath, RelationPath]
    tail: RelationPath
    with_union: bool
    """Whether the first arm starts from either of two constants (an R-Union)."""

    def queries(self, steps: Steps, rng: random.Random) -> Iterator[Query]:
        """Random queries with repeats; none if the arms never meet."""
        first_hosts, second_hosts = (_hosts(arm, steps) for arm in self.arms)
        meeting = [entity for entity in first_hosts if entity in second_hosts]
        if self.tail:
            meeting = [entity for entity in meeting if entity in steps.single[self.tail[0]]]
        for _ in range(_DRAWS_PER_JOIN if meeting else 0):
            entity = rng.choice(meeting)
            first = _constant(self.arms[0], rng.choice(first_hosts[entity]), steps, rng)
            second = _constant(self.arms[1], rng.choice(second_hosts[entity]), steps, rng)
            start: Query = Constant(first)
            if self.with_union:
                others = list(steps.listed[self.arms[0][0]])
                start = ConstantSet((first, rng.choice(others)))
            arms = (project(self.arms[0], start), project(self.arms[1], Constant(second)))
            yield project(self.tail, Intersection(arms))


def chains(graph: KnowledgeGraph, length: int) -> list[Chain]:
    """Every chain of `length` projections."""
    return [Chain(path) for path in typed_paths(graph, length)]


def intersections(graph: KnowledgeGraph) -> list[Join]:
    """Every join of two lists at the target or one projection before it."""
    outer = [Join(arms, (), with_union=False) for arms in _arm_pairs(graph, 2)]
    inner = [Join(arms, tail, with_union=False) for arms, tail in _tailed(graph)]
    return outer + inner


def unions(graph: KnowledgeGraph) -> list[Join]:
    """Every intersection, with an R-Union on one side, one projection before the target.

    Arms of two projections are left out: they would take six searches, more than an episode's usual
    limit.
    """
    return [Join(arms, tail, with_union=True) for arms, tail in _tailed(graph)]


def project(path: RelationPath, start: Query) -> Query:
    """Nest the projections of `path` around `start`, the first one innermost."""
    for relation in path:
        start = Projection(relation, start)
    return start


def _arm_pairs(graph: KnowledgeGraph, length: int) -> list[tuple[RelationPath, RelationPath]]:
    """Pairs of paths to the same kind whose last relations can list several entities."""
    paths = [p for p in typed_paths(graph, length) if not graph.relations[p[-1]].functional]
    return [
        (first, second)
        for first in paths
        for second in paths
        if graph.relations[first[-1]].object_kind == graph.relations[second[-1]].object_kind
    ]


def _tailed(graph: KnowledgeGraph) -> list[tuple[tuple[RelationPath, RelationPath], RelationPath]]:
    return [
        (arms, (name,))
        for arms in _arm_pairs(graph, 1)
        for name, relation in sorted(graph.relations.items())
        if relation.subject_kind == graph.relations[arms[0][-1]].object_kind
    ]


def _hosts(arm: RelationPath, steps: Steps) -> dict[str, list[str]]:
    """Entity -> subjects that list it at the end of the arm and can be reached from a constant."""
    hosts = steps.hosts(arm[-1])
    if len(arm) == 1:
        return hosts
    led_to = {
        entity: [host for host in found if steps.sources(arm[0], host)]
        for entity, found in hosts.items()
    }
    return {entity: found for entity, found in led_to.items() if found}


def _constant(arm: RelationPath, host: str, steps: Steps, rng: random.Random) -> str:
    """A constant from which the arm leads to `host`."""
    return host if len(arm) == 1 else rng.choice(steps.sources(arm[0], host))


def _permutation(size: int, rng: random.Random) -> Iterator[int]:
    """Every position once, by an affine walk, which needs no shuffled copy of a long list."""
    if not size:
        return
    offset, stride = rng.randrange(size), rng.randrange(1, size + 1)
    while math.gcd(stride, size) != 1:
        stride += 1
    for step in range(size):
        yield (offset + step * stride) % size

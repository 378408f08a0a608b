"""Which steps a question may take, by split: the typed edges that generators walk along."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from espalier.knowledge import Entity, KnowledgeGraph

TaskSplit = Literal["train", "dev", "heldout"]
Path = tuple[str, ...]
"""Relations from the constant outwards."""
MAX_LISTED = 8
"""A longer list is no part of a question: reading it would be the whole task."""
_INVERSE_SHARE = 0.9
_INVERSE_SAMPLE = 100


class Steps:
    """The edges between entities that a question of one split may name or pass through.

    `single[r]` maps a subject to its only object; `listed[r]` maps a subject to its 2 to
    `MAX_LISTED` objects, of which those of other splits are distractors and never the answer.
    """

    def __init__(self, graph: KnowledgeGraph, split: TaskSplit) -> None:
        self.graph = graph
        self.split: TaskSplit = split
        self.single: dict[str, dict[str, str]] = {}
        self.listed: dict[str, dict[str, tuple[str, ...]]] = {}
        self.excluded: dict[str, int] = defaultdict(int)
        """Why edges of the graph are no step: reason -> number of subjects."""
        self._allowed = {e.entity_id for e in graph.entities.values() if self._admits(e)}
        self._starts: dict[Path, list[str]] = {}
        self._sources: dict[str, dict[str, list[str]]] = {}
        self._hosts: dict[str, dict[str, list[str]]] = {}
        subjects: dict[str, dict[str, None]] = {name: {} for name in graph.relations}
        for triple in graph.triples():
            subjects[triple.relation][triple.subject] = None
        for relation, ids in subjects.items():
            self._add_relation(relation, list(ids))

    def starts(self, path: Path) -> list[str]:
        """Constants from which every step of `path` leads to one entity, in the graph's order."""
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
        """Subjects whose only `relation` is the entity."""
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
        """Whether each entity is askable, and of the split or a hub."""
        return self._allowed.issuperset(entity_ids)

    def holds_own_entity(self, entity_ids: Sequence[str]) -> bool:
        """Whether some entity is of the split itself, and not a hub that every split shares."""
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


def typed_paths(graph: KnowledgeGraph, length: int) -> list[Path]:
    """Every chain of `length` relations whose kinds fit, none undoing the one before it."""
    inverses = inverse_pairs(graph)
    paths: list[Path] = [(name,) for name in sorted(graph.relations)]
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
    """Pairs of relations of which the second mostly leads back to where the first came from."""
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

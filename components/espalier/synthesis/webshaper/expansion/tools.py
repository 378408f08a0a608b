"""The expander's tools on the knowledge base: search, summarize, and validate.

What they show is what a question of the split may name: facts of other splits stay hidden.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from espalier.records import DataError
from espalier.synthesis.webshaper.candidate import Candidate, World
from espalier.synthesis.webshaper.evaluate import evaluate
from espalier.synthesis.webshaper.expansion.calls import Fact, Found, RelationTold, Summary
from espalier.synthesis.webshaper.formalism import Kind, check, parse, query_of
from espalier.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
    constants,
)
from espalier.synthesis.webshaper.steps import Steps

_MAX_FACTS_PER_RELATION = 6
_MAX_SUMMARY = 20

Judge = Callable[[Candidate], str | None]
"""Why the grown question is not fair, or None."""


class Tools:
    """Search, Summarize and Validate for questions of one split."""

    def __init__(self, steps: Steps, world: World, judge: Judge, seed: int) -> None:
        graph = world.graph
        self._steps = steps
        self._world = world
        self._judge = judge
        self._seed = seed
        self.relations = tuple(
            RelationTold(name=r.name, subject_kind=r.subject_kind, object_kind=r.object_kind)
            for r in graph.relations.values()
        )
        self.names = {entity_id: entity.name for entity_id, entity in graph.entities.items()}
        self._ids = {e.name: e.entity_id for e in graph.entities.values() if e.askable}
        self._by_object_kind: dict[str, list[str]] = {}
        for relation in graph.relations.values():
            self._by_object_kind.setdefault(relation.object_kind, []).append(relation.name)

    def search(self, name: str) -> Found:
        """Facts that list the entity, a few of every relation, drawn under the seed."""
        entity_id = self._ids.get(name)
        if entity_id is None:
            return Found(facts=())
        rng = random.Random(f"{self._seed}/{self._steps.split}/search/{entity_id}")
        facts: list[Fact] = []
        for relation in self._by_object_kind.get(self._kind(entity_id), ()):
            alone = self._steps.sources(relation, entity_id)
            beside = self._steps.hosts(relation).get(entity_id, [])
            for subjects in (alone, beside):
                shown = rng.sample(subjects, min(len(subjects), _MAX_FACTS_PER_RELATION))
                facts += [self._fact(subject, relation) for subject in shown]
        return Found(facts=tuple(facts))

    def summarize(self, relation: str, names: Sequence[str]) -> Summary:
        """What the relation holds for any of the entities."""
        ids = tuple(self._ids[name] for name in names if name in self._ids)
        if relation not in self._world.graph.relations or not ids:
            return Summary(objects=())
        found = evaluate(Projection(relation, ConstantSet(ids)), self._world.graph)
        return Summary(objects=tuple(sorted(self.names[e] for e in found)[:_MAX_SUMMARY]))

    def validate(
        self, entries: Sequence[Sequence[str]], question: Query, leaf: str
    ) -> Candidate | str:
        """The question with the sub-question in the place of `leaf`, or why it is refused."""
        rows = [list(entry) for entry in entries]
        # the target of a sub-question is a variable of the whole: a constant may stand beside it
        faults = [fault for fault in check(rows) if fault.kind != Kind.CONSTANT_BESIDE_TARGET]
        if faults:
            return faults[0].kind.value
        try:
            sub_question = query_of(parse(rows), self._ids)
        except DataError:
            return "unknown_name_or_direction"
        reason = self._sub_question_fault(sub_question, leaf)
        if reason is not None:
            return reason
        grown = Candidate(replaced(question, leaf, sub_question), self._world)
        return self._judge(grown) or grown

    def _sub_question_fault(self, sub_question: Query, leaf: str) -> str | None:
        graph = self._world.graph
        used = _projections(sub_question)
        if not used or any(relation not in graph.relations for relation in used):
            return "unknown_relation"
        if answer_kinds(sub_question, self._world) != {self._kind(leaf)}:
            return "type_mismatch"
        if leaf in constants(sub_question):
            return "names_the_leaf"
        return None if evaluate(sub_question, graph) == {leaf} else "other_answers"

    def _fact(self, subject: str, relation: str) -> Fact:
        objects = self._world.graph.objects(relation, subject)
        return Fact(
            subject=self.names[subject],
            relation=relation,
            objects=tuple(self.names[entity_id] for entity_id in objects),
        )

    def _kind(self, entity_id: str) -> str:
        return self._world.graph.entities[entity_id].kind


def replaced(query: Query, leaf: str, sub_question: Query) -> Query:
    """The query with `sub_question` wherever the constant `leaf` stands alone."""
    match query:
        case Constant(entity_id):
            return sub_question if entity_id == leaf else query
        case Projection(relation, inner):
            return Projection(relation, replaced(inner, leaf, sub_question))
        case ConstantSet():
            return query
        case _:
            return type(query)(tuple(replaced(p, leaf, sub_question) for p in query.parts))


def answer_kinds(query: Query, world: World) -> set[str]:
    """The kinds of entity that a query can hold, by its relations alone."""
    match query:
        case Projection(relation, _):
            return {world.graph.relations[relation].object_kind}
        case Constant(entity_id):
            return {world.graph.entities[entity_id].kind}
        case ConstantSet(entity_ids):
            return {world.graph.entities[entity_id].kind for entity_id in entity_ids}
        case _:
            return set[str]().union(*(answer_kinds(part, world) for part in query.parts))


def _projections(query: Query) -> list[str]:
    match query:
        case Projection(relation, inner):
            return [relation, *_projections(inner)]
        case Constant() | ConstantSet():
            return []
        case Intersection(parts):
            return [name for part in parts for name in _projections(part)]
        case _:
            return [name for part in query.parts for name in _projections(part)]

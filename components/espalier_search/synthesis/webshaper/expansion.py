"""Layer-wise expansion: seed questions from random walks, grown by an agent with tools.

In each layer the constants that the layer before introduced become variables with sub-questions of
their own (WebShaper, arXiv:2507.15061, sec. 4.2). For each of these leaves the agent searches,
summarizes and validates until a sub-question is accepted. If it gives up or has used its turns, the
leaf stays as it is. The tools show only facts that a question of the split may name.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from espalier.completions import Model, ModelRefusal, in_order
from espalier.config import ExpansionConfig
from espalier.environments.funnel import Funnel
from espalier.records import DataError
from espalier_search.synthesis.teacher import route_of
from espalier_search.synthesis.webshaper.candidate import CandidateQuestion, World
from espalier_search.synthesis.webshaper.expansion_calls import (
    Action,
    ExpanderTurn,
    ExpansionState,
    Fact,
    FoundFacts,
    GiveUp,
    RelationInput,
    Search,
    SubQuestionVerdict,
    Summarize,
    UnionMembers,
    Validate,
    action_request,
)
from espalier_search.synthesis.webshaper.generator import Generator, not_of_split
from espalier_search.synthesis.webshaper.notation import FaultKind, parse, rows_of
from espalier_search.synthesis.webshaper.notation_checks import check
from espalier_search.synthesis.webshaper.notation_queries import entries_of, query_of
from espalier_search.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
    canonical,
    constants,
    evaluate,
    nodes,
)
from espalier_search.synthesis.webshaper.rules import broken_rule
from espalier_search.synthesis.webshaper.steps import Steps, inverse_pairs, project


class RandomWalks:
    """Random walks along steps with a single object, without steps back by an inverse."""

    def __init__(self, steps: Steps, rng: random.Random) -> None:
        self._steps = steps
        self._rng = rng
        self._inverses = inverse_pairs(steps.graph)
        entities = steps.graph.entities
        self._starts: dict[str, dict[str, None]] = defaultdict(dict)
        """Kind of entity -> entities that have an outgoing step."""
        self._relations: dict[str, list[str]] = defaultdict(list)
        for name, step in steps.single.items():
            self._relations[steps.graph.relations[name].subject_kind].append(name)
            for subject in step:
                self._starts[entities[subject].kind][subject] = None
        self._kinds = [(kind, list(found)) for kind, found in sorted(self._starts.items())]

    def queries(self, min_length: int, max_length: int) -> Iterator[Query]:
        """An endless stream of walks with repeats; empty if the split has no step."""
        while self._kinds:
            # draw the kind first: nine of ten entities are cities and would start most questions
            _, starts = self._rng.choice(self._kinds)
            start = self._rng.choice(starts)
            path = self._path(start, self._rng.randint(min_length, max_length))
            if len(path) >= min_length:
                yield project(tuple(path), Constant(start))

    def _path(self, start: str, length: int) -> list[str]:
        path: list[str] = []
        entity = start
        while len(path) < length:
            kind = self._steps.graph.entities[entity].kind
            onward = [
                name
                for name in self._relations[kind]
                if entity in self._steps.single[name]
                and not (path and (path[-1], name) in self._inverses)
            ]
            if not onward:
                break
            path.append(self._rng.choice(onward))
            entity = self._steps.single[path[-1]][entity]
        return path


_MAX_FACTS_PER_RELATION = 6
_MAX_SUMMARY = 20

ReasonAgainst = Callable[[CandidateQuestion], str | None]
"""A function that returns the reason why a grown question is unfair; None for a fair one."""


class ExpanderTools:
    """The expander's tools `search`, `summarize` and `validate`, for questions of one split."""

    def __init__(
        self, steps: Steps, world: World, reason_against: ReasonAgainst, seed: int
    ) -> None:
        graph = world.graph
        self._steps = steps
        self._world = world
        self._reason_against_grown = reason_against
        self._seed = seed
        self.relations = tuple(
            RelationInput(name=r.name, subject_kind=r.subject_kind, object_kind=r.object_kind)
            for r in graph.relations.values()
        )
        self.names = {entity_id: entity.name for entity_id, entity in graph.entities.items()}
        self._ids = {e.name: e.entity_id for e in graph.entities.values() if e.askable}
        self._by_object_kind: dict[str, list[str]] = {}
        for relation in graph.relations.values():
            self._by_object_kind.setdefault(relation.object_kind, []).append(relation.name)

    def search(self, name: str) -> FoundFacts:
        """Facts whose objects include the entity, a seeded sample of each relation."""
        entity_id = self._ids.get(name)
        if entity_id is None:
            return FoundFacts(facts=())
        rng = random.Random(f"{self._seed}/{self._steps.split}/search/{entity_id}")
        facts: list[Fact] = []
        for relation in self._by_object_kind.get(self._kind(entity_id), ()):
            alone = self._steps.sources(relation, entity_id)
            beside = self._steps.hosts(relation).get(entity_id, [])
            for subjects in (alone, beside):
                shown = rng.sample(subjects, min(len(subjects), _MAX_FACTS_PER_RELATION))
                for subject in shown:
                    objects = self._world.graph.objects(relation, subject)
                    names = tuple(self.names[entity_id] for entity_id in objects)
                    fact = Fact(subject=self.names[subject], relation=relation, objects=names)
                    facts.append(fact)
        return FoundFacts(facts=tuple(facts))

    def summarize(self, relation: str, names: Sequence[str]) -> UnionMembers:
        """Objects of the relation for any of the entities."""
        ids = tuple(self._ids[name] for name in names if name in self._ids)
        if relation not in self._world.graph.relations or not ids:
            return UnionMembers(objects=())
        found = evaluate(Projection(relation, ConstantSet(ids)), self._world.graph)
        return UnionMembers(objects=tuple(sorted(self.names[e] for e in found)[:_MAX_SUMMARY]))

    def validate(
        self, entries: Sequence[Sequence[str]], question: Query, leaf: str
    ) -> CandidateQuestion | str:
        """The question with the sub-question in place of `leaf`, or the reason to refuse it."""
        rows = [list(entry) for entry in entries]
        # its target is a variable of the whole question, so a constant may be next to it
        faults = [fault for fault in check(rows) if fault.kind != FaultKind.CONSTANT_BESIDE_TARGET]
        if faults:
            return faults[0].kind.value
        try:
            sub_question = query_of(parse(rows), self._ids)
        except DataError:
            return "unknown_name_or_direction"
        reason = self._sub_question_fault(sub_question, leaf)
        if reason is not None:
            return reason
        grown = CandidateQuestion(with_sub_question(question, leaf, sub_question), self._world)
        return self._reason_against_grown(grown) or grown

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

    def _kind(self, entity_id: str) -> str:
        return self._world.graph.entities[entity_id].kind


def with_sub_question(query: Query, leaf: str, sub_question: Query) -> Query:
    """Replace the constant `leaf` by `sub_question`, except as a member of a set."""
    match query:
        case Constant(entity_id):
            return sub_question if entity_id == leaf else query
        case Projection(relation, inner):
            return Projection(relation, with_sub_question(inner, leaf, sub_question))
        case ConstantSet():
            return query
        case _:
            return type(query)(tuple(with_sub_question(p, leaf, sub_question) for p in query.parts))


def answer_kinds(query: Query, world: World) -> set[str]:
    """Kinds of entity that a query can lead to, by its relations alone."""
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


class _ActionOutcome(NamedTuple):
    """An action's result, and the grown question if the action was accepted."""

    result: FoundFacts | UnionMembers | SubQuestionVerdict
    grown: CandidateQuestion | None = None


class Expander:
    """Grows questions of one split with a model and its tools."""

    def __init__(
        self,
        model: Model,
        tools: ExpanderTools,
        config: ExpansionConfig,
        funnel: Funnel,
        heading: str,
    ) -> None:
        self._model = model
        self._tools = tools
        self._config = config
        self._funnel = funnel
        self._heading = heading

    async def grow(self, seed_question: CandidateQuestion) -> CandidateQuestion | None:
        """The question after up to `layers` layers; None if no leaf could be replaced."""
        question = seed_question
        frontier = _leaves(question)
        for _ in range(self._config.layers):
            before = set(constants(question.query))
            for leaf in frontier:
                question = await self._expand_leaf(question, leaf) or question
            frontier = [leaf for leaf in _leaves(question) if leaf not in before]
            if not frontier:
                break
        return None if question is seed_question else question

    async def _expand_leaf(
        self, question: CandidateQuestion, leaf: str
    ) -> CandidateQuestion | None:
        """The question with a sub-question in place of the leaf; None if the agent found none."""
        growth = self._state_of(question, leaf)
        for _ in range(self._config.max_actions):
            action = await self._model.answer(action_request(growth, sample=0))
            if isinstance(action, ModelRefusal):
                self._count(f"model_{action.reason}")
                return None
            if isinstance(action.call, GiveUp):
                self._count("gave_up")
                return None
            step = self._execute(action, question, leaf)
            if step.grown is not None:
                self._count("grown")
                return step.grown
            turn = ExpanderTurn(action=action, result=step.result)
            growth = growth.model_copy(update={"turns": (*growth.turns, turn)})
        self._count("out_of_actions")
        return None

    def _execute(self, action: Action, question: CandidateQuestion, leaf: str) -> _ActionOutcome:
        match action.call:
            case Search(name=name):
                return _ActionOutcome(self._tools.search(name))
            case Summarize(relation=relation, names=names):
                return _ActionOutcome(self._tools.summarize(relation, names))
            case Validate(entries=entries):
                verdict = self._tools.validate(entries, question.query, leaf)
                if isinstance(verdict, CandidateQuestion):
                    return _ActionOutcome(SubQuestionVerdict(accepted=True), verdict)
                self._count(f"refused_{verdict}")
                return _ActionOutcome(SubQuestionVerdict(accepted=False, reason=verdict))
            case GiveUp():
                raise AssertionError("the caller handles GiveUp before it executes an action")

    def _state_of(self, question: CandidateQuestion, leaf: str) -> ExpansionState:
        rows = rows_of(entries_of(question.query, self._tools.names))
        return ExpansionState(
            question=tuple((row[0], row[1], row[2]) for row in rows),
            leaf=question.name(leaf),
            leaf_kind=question.world.graph.entities[leaf].kind,
            relations=self._tools.relations,
        )

    def _count(self, reason: str) -> None:
        self._funnel.count(self._heading, reason)


def _leaves(question: CandidateQuestion) -> list[str]:
    """Ids of the single constants; members of a set cannot be replaced one by one."""
    return [node.entity_id for node in nodes(question.query) if isinstance(node, Constant)]


_MOST_SEED_HOPS = 2
_MAX_FRUITLESS = 2_000
"""Walks or seeds in a row without a new question after which the source counts as exhausted."""

Answerable = Callable[[CandidateQuestion], bool]
"""A function that tells whether at least one rollout of a seed question is right."""


class QuestionGrower:
    """Draws grown questions; no query is drawn twice, as it shares the memory of `generator`."""

    def __init__(
        self,
        model: Model,
        generator: Generator,
        config: ExpansionConfig,
        *,
        seed: int,
        in_flight: int,
    ) -> None:
        self._model = model
        self._generator = generator
        self._config = config
        self._seed = seed
        self._in_flight = in_flight

    async def questions(
        self, steps: Steps, world: World, answerable: Answerable, funnel: Funnel
    ) -> AsyncGenerator[CandidateQuestion]:
        """Grown questions, until the walks yield no new one."""
        heading = f"{steps.split}.expansion"
        tools = ExpanderTools(steps, world, partial(self._reason_against, steps), self._seed)
        expander = Expander(self._model, tools, self._config, funnel, heading)
        seeds = self._seeds(steps, world, answerable, funnel)
        fruitless = 0
        async for grown in in_order(expander.grow, seeds, in_flight=self._in_flight):
            reason = (
                "nothing_grew" if grown is None else self._generator.reason_against(grown, steps)
            )
            funnel.count(f"{steps.split}.grown", reason or "accepted")
            fruitless = fruitless + 1 if reason else 0
            if grown is not None and reason is None:
                yield grown
            if fruitless >= _MAX_FRUITLESS:
                return

    def _seeds(
        self, steps: Steps, world: World, answerable: Answerable, funnel: Funnel
    ) -> Iterator[CandidateQuestion]:
        """Distinct fair walks that a rollout answers, until no new one is found."""
        rng = random.Random(f"{self._seed}/{steps.split}/walks")
        seen: set[str] = set()
        fruitless = 0
        for query in RandomWalks(steps, rng).queries(1, _MOST_SEED_HOPS):
            candidate = CandidateQuestion(query, world)
            text = canonical(query)
            reason = "walked_before" if text in seen else broken_rule(candidate)
            reason = reason or not_of_split(candidate, steps)
            if reason is None and not answerable(candidate):
                reason = "no_rollout_right"
            seen.add(text)
            funnel.count(f"{steps.split}.seeds", reason or "kept")
            fruitless = fruitless + 1 if reason else 0
            if reason is None:
                yield candidate
            elif fruitless >= _MAX_FRUITLESS:
                return

    def _reason_against(self, steps: Steps, grown: CandidateQuestion) -> str | None:
        """The first broken rule of all questions, or the limit of searches per episode."""
        searches = len(route_of(grown.query, grown.world.graph).labels)
        if searches > self._config.max_searches:
            return "too_many_searches"
        return broken_rule(grown) or not_of_split(grown, steps)

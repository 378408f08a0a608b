"""New questions that a model proposes after failed ones, proven on the knowledge graph.

The model names a constant and the relations to follow from it, but no answer and no wording. Every
name is looked up, and the query has to follow the rules of all questions. Class names and
docstrings of the model's answer are part of the schema and of the cache key (`agent_texts.calls`).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

from pydantic import Field

from espalier.completions import ModelRefusal, PlainText, Request, StrictModel, all_answers
from espalier.config import EndpointConfig
from espalier.environments.proposals import ProposalRequest, ProposedTasks
from espalier.records import Task
from espalier.records.folding import folded_name
from espalier.records.knowledge import Entity
from espalier_search.synthesis.evolution import Prover, proven_of
from espalier_search.synthesis.webshaper.expansion_calls import RelationInput
from espalier_search.synthesis.webshaper.query import Constant, Query
from espalier_search.synthesis.webshaper.steps import project

INSTRUCTIONS = (
    "An agent that searches a knowledge base failed the questions below. Propose new questions of "
    "the same kind: similar relations, other entities, a little easier or a little harder. A "
    "question starts at one entity, which it names, and follows one relation after the other from "
    "there; it has exactly one answer, which is not to be met on the way. Use the names of the "
    "listed relations alone; each leads from its subject kind to its object kind."
)
_PROPOSALS = 8
"""Number of questions that one request asks for, and the most failed questions in it."""


class FailedQuestionInput(StrictModel):
    """A failed question, and its signature: relations without constants."""

    question: str
    pattern: str


class FailuresInput(StrictModel):
    """What the model is shown."""

    failed: tuple[FailedQuestionInput, ...]
    relations: tuple[RelationInput, ...]
    wanted: int


class ProposedQuestion(StrictModel):
    """A constant, and the relations that lead from it to the answer, in that order."""

    entity: PlainText
    relations: tuple[PlainText, ...] = Field(min_length=1, max_length=8)


class ProposedQuestions(StrictModel):
    """The answer to one request."""

    questions: tuple[ProposedQuestion, ...] = Field(max_length=4 * _PROPOSALS)


class TeacherProposer:
    """A `TaskProposer` that asks the model of an endpoint for questions."""

    def __init__(self, prover: Prover, endpoint: EndpointConfig) -> None:
        self._prover = prover
        self._endpoint = endpoint

    def propose(self, order: ProposalRequest) -> ProposedTasks:
        """Propose new tasks after failed ones.

        Raises:
            EngineError: the server cannot be used.
        """
        proposals = self._proposed(order) if order.failed else []
        return proven_of(proposals, order, self._prover)

    def _proposed(self, order: ProposalRequest) -> list[Query | str]:
        found: list[Query | str] = []
        for answer in all_answers(self._endpoint, self._requests(order)):
            if isinstance(answer, ModelRefusal):
                found.append(f"answer_{answer.reason}")
            else:
                found += [self.query_of(proposed) for proposed in answer.questions]
        return found

    def _requests(self, order: ProposalRequest) -> Iterator[Request[ProposedQuestions]]:
        rng = random.Random(order.seed)
        for number in range(-(-order.num_tasks // _PROPOSALS)):
            shown = rng.sample(list(order.failed), min(_PROPOSALS, len(order.failed)))
            yield Request(
                call="propose_questions",
                instructions=INSTRUCTIONS,
                material=self._failures_input(shown),
                answer=ProposedQuestions,
                sample=number,
            )

    def _failures_input(self, failed: Sequence[Task]) -> FailuresInput:
        return FailuresInput(
            failed=tuple(
                FailedQuestionInput(question=task.question, pattern=task.metadata.pattern)
                for task in failed
            ),
            relations=tuple(
                RelationInput(
                    name=name,
                    subject_kind=relation.subject_kind,
                    object_kind=relation.object_kind,
                )
                for name, relation in sorted(self._prover.graph.relations.items())
            ),
            wanted=_PROPOSALS,
        )

    def query_of(self, proposed: ProposedQuestion) -> Query | str:
        """The proposed query, or the reason why it is not a query on this graph."""
        relations = self._prover.graph.relations
        if not relations.keys() >= set(proposed.relations):
            return "unknown_relation"
        path = tuple(proposed.relations)
        for name, following in pairwise(path):
            if relations[name].object_kind != relations[following].subject_kind:
                return "relations_do_not_join"
        kind = relations[path[0]].subject_kind
        named = [
            entity
            for entity in self._named.get(folded_name(proposed.entity), ())
            if entity.kind == kind
        ]
        if len(named) != 1:
            return "ambiguous_entity" if named else "unknown_entity"
        return project(path, Constant(named[0].entity_id))

    @cached_property
    def _named(self) -> dict[str, list[Entity]]:
        by_name: dict[str, list[Entity]] = defaultdict(list)
        for entity in self._prover.graph.entities.values():
            by_name[folded_name(entity.name)].append(entity)
        return dict(by_name)

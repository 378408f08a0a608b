"""Whether a query is a question that training may ask, and the task that asks it.

The answer of each is proven on the graph by the rules that every question obeys; its entities are
those of the training split, its text and its query those of no dev or held-out question.
"""

from __future__ import annotations

from collections.abc import Set
from functools import cached_property
from pathlib import Path

from espalier.config import Profile
from espalier.knowledge import KnowledgeGraph
from espalier.records import DataError, Task, read_tasks
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.questions import FormalQuestions
from espalier.synthesis.task_making import formal_question
from espalier.synthesis.webshaper.candidate import Candidate, World
from espalier.synthesis.webshaper.generator import not_of_split
from espalier.synthesis.webshaper.query import Query, canonical
from espalier.synthesis.webshaper.rules import broken_rule
from espalier.synthesis.webshaper.steps import Steps


class Prover:
    """Proves questions on the graph of a knowledge artifact."""

    def __init__(self, profile: Profile, knowledge: Path, accepted: Path) -> None:
        """Read the graph, and the questions that must not be asked.

        Raises:
            ArtifactError: a broken artifact.
            DataError: the knowledge has no triples.
        """
        self.graph = KnowledgeGraph.load(knowledge)
        if not self.graph.relations:
            raise DataError(
                f"{knowledge}: self-play proves its tasks by triples, and there are none: give "
                'knowledge.triples, or set self_play.name = "off"'
            )
        self._profile = profile
        self._knowledge = knowledge
        apart = [
            task
            for split in ("dev", "heldout")
            for task in read_tasks(accepted / "tasks" / f"{split}.jsonl")
        ]
        self._apart_queries = {str(task.extra.get("query", "")) for task in apart} - {""}
        self._apart_questions = {_folded(task.question) for task in apart}

    @cached_property
    def steps(self) -> Steps:
        """The edges that a training question may walk along."""
        return Steps(self.graph, "train")

    def proven(self, query: Query, asked: Set[str]) -> Task | str:
        """The task that asks for `query`, or why there is none; `asked` are former queries."""
        text = canonical(query)
        if text in self._apart_queries:
            return "asked_in_dev_or_heldout"
        if text in asked:
            return "asked_before"
        candidate = Candidate(query, self._world)
        fault = broken_rule(candidate) or not_of_split(candidate, self.steps)
        if fault:
            return fault
        question = formal_question(
            candidate, "train", self._profile.seed, self._profile.self_play.name
        )
        assert question.route is not None, "a formal question has a route"
        if len(question.route.labels) >= self._profile.episode.max_turns:
            return "too_long_for_an_episode"
        if _folded(question.task.question) in self._apart_questions:
            return "worded_as_in_dev_or_heldout"
        return question.task

    @cached_property
    def _world(self) -> World:
        formal = FormalQuestions(self._profile, self._knowledge, self.graph, Funnel())
        return formal.world("train")


def _folded(question: str) -> str:
    return " ".join(question.lower().split())

"""Every split's questions: a user's own first, formal ones up to the number that is asked for."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from espalier.config import Profile
from espalier.knowledge import KnowledgeGraph
from espalier.knowledge.documents import load_documents
from espalier.knowledge.search import documents_path
from espalier.knowledge.views import View
from espalier.records import DataError
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.grown_questions import GrownQuestions
from espalier.synthesis.own_questions import OwnQuestion, read_own_questions
from espalier.synthesis.task_making import (
    GROWN,
    INDEX_OF_SPLIT,
    SPLITS,
    Question,
    Split,
    formal_question,
    own_question,
)
from espalier.synthesis.webshaper.candidate import World
from espalier.synthesis.webshaper.evidence import Evidence
from espalier.synthesis.webshaper.generator import Generator, family_weights

_TITLE_WORDS = 8
"""Words of an observation set aside for the title and the field name of the line."""


def make_questions(
    profile: Profile, knowledge: Path, graph: KnowledgeGraph, funnel: Funnel
) -> dict[Split, list[Question]]:
    """The questions of every split, in random order.

    Raises:
        DataError: a split would stay empty.
    """
    own = _own_questions(knowledge / "questions.jsonl", profile, funnel)
    formal = FormalQuestions(profile, knowledge, graph, funnel)
    questions: dict[Split, list[Question]] = {}
    for split, asked in _asked(profile).items():
        found = own[split]
        if len(found) < asked:
            found = found + formal.draw(split, asked - len(found))
        questions[split] = _without_repeats(found, split, funnel)
        random.Random(f"{profile.seed}/{split}/mixed").shuffle(questions[split])
    if empty := [split for split, found in questions.items() if not found]:
        raise DataError(
            f"synthesis: no question for {', '.join(empty)}. {len(graph.relations)} relations and "
            f"{sum(len(found) for found in own.values())} questions of your own are too few: give "
            "knowledge.triples with more entities, give more question/answer pairs in "
            "knowledge.questions (at least 12), or raise splits.heldout_share and splits.dev_share."
        )
    return questions


class FormalQuestions:
    """Draws the formal questions of a knowledge artifact, split by split."""

    def __init__(
        self, profile: Profile, knowledge: Path, graph: KnowledgeGraph, funnel: Funnel
    ) -> None:
        self._profile = profile
        self._knowledge = knowledge
        self._graph = graph
        self._funnel = funnel
        self._evidence = self._documents("full")
        weights = family_weights(profile.synthesis)
        self._generator = Generator(graph, weights, profile.seed)
        self._grown = GrownQuestions(profile, knowledge, self._generator)

    def draw(self, split: Split, count: int) -> list[Question]:
        """Up to `count` questions of a split."""
        world = self.world(split)
        wanted = round(count * self._profile.synthesis.expansion.share)
        grown = self._grown.draw(split, wanted, world, self._funnel)
        drawn = self._generator.generate(split, count - len(grown), world, self._funnel)
        seed = self._profile.seed
        return [
            *(formal_question(candidate, split, seed, GROWN) for candidate in grown),
            *(formal_question(candidate, split, seed) for candidate in drawn),
        ]

    def world(self, split: Split) -> World:
        """What the questions of a split are judged against."""
        view_name = INDEX_OF_SPLIT[split]
        view = self._evidence if view_name == "full" else self._documents(view_name)
        max_words = self._profile.search.max_observation_words - _TITLE_WORDS
        return World(self._graph, self._evidence, view, max_words)

    def _documents(self, view: View) -> Evidence:
        return Evidence(load_documents(documents_path(self._knowledge, view)))


def _own_questions(path: Path, profile: Profile, funnel: Funnel) -> dict[Split, list[Question]]:
    """A user's questions by split, at most as many as the profile asks for."""
    by_split: dict[Split, list[OwnQuestion]] = {split: [] for split in SPLITS}
    for question in read_own_questions(path):
        by_split[question.split].append(question)
    asked = _asked(profile)
    kept: dict[Split, list[Question]] = {}
    for split, found in by_split.items():
        if len(found) > asked[split]:
            funnel.count(f"{split}.own_questions", "more_than_asked_for", len(found) - asked[split])
            found = random.Random(f"{profile.seed}/{split}/own").sample(found, asked[split])
        kept[split] = [own_question(question) for question in found]
    return kept


def _asked(profile: Profile) -> Mapping[Split, int]:
    config = profile.synthesis
    return {"train": config.train_tasks, "dev": config.dev_tasks, "heldout": config.heldout_tasks}


def _without_repeats(questions: list[Question], split: Split, funnel: Funnel) -> list[Question]:
    """One question a task id and a wording; repeats are counted."""
    kept: dict[str, Question] = {}
    for question in questions:
        kept.setdefault(question.task.question, question)
    if len(kept) < len(questions):
        funnel.count(f"{split}.own_questions", "repeated", len(questions) - len(kept))
    return list(kept.values())

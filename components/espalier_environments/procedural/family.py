"""Procedural questions of reasoning-gym (Stojanovski et al. 2025, arXiv:2505.24760).

One question, no tool, one answer. There are over a hundred generators of puzzles, arithmetic,
logic, graphs and games, whose parameters form the levels of a curriculum. Upstream's scorers judge
answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import cast

from espalier.dialects.syntax import split_blocks
from espalier.dialects.tags import ANSWER
from espalier.environments.episode import EpisodeRules
from espalier.environments.family import SimpleFamily
from espalier.environments.mixins import InstallsPackages
from espalier.environments.reading import Log, ReadingMaterial
from espalier.environments.teaching import GaveUp, Script
from espalier.environments.tools import Tool
from espalier.records import DataError, FinalAnswer, Split, Task
from espalier.records.trajectory import Trajectory
from espalier_environments.procedural.config import ProceduralConfig
from espalier_environments.procedural.drawing import UNTOLD, Drawing
from espalier_environments.procedural.generators import Generators, Knobs, Verdict, generators_of
from espalier_environments.procedural.packages import install, python_of
from espalier_environments.procedural.worked import worked

INSTRUCTIONS = (
    "Solve the problem. Think first, then give the answer alone, in the form that the problem asks "
    "for, as <answer>your answer</answer>.\n"
)


class Procedural(SimpleFamily[ProceduralConfig], InstallsPackages):
    """The family of reasoning-gym's questions."""

    name = "procedural"
    config = ProceduralConfig
    instructions = INSTRUCTIONS
    splits_digits = True
    answers_from_evidence = False
    reads_symbols = True

    @classmethod
    def install_packages(cls) -> str:
        """Install reasoning-gym into a virtual environment of its own."""
        return f"installed reasoning-gym: {install()}"

    def tools(self) -> Sequence[Tool]:
        """Return no tools: an episode is one message."""
        return ()

    @property
    def generators(self) -> Generators:
        """The process that generates and scores.

        Raises:
            ProfileError: reasoning-gym is not installed.
        """
        return generators_of(python_of(self.settings.python))

    @cached_property
    def _drawing(self) -> Drawing:
        return Drawing(self.settings, self.profile.splits, self.generators)

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Return questions of all generators; a level with few distinct questions gives fewer."""
        return self._drawing.tasks(split, count)

    def rules(self, tools: Sequence[Tool]) -> EpisodeRules:
        """Return rules that read an answer with or without answer tags, as upstream does."""
        return replace(super().rules(tools), read_answer=answer_in)

    def verify(self, task: Task, answer: str | None) -> float:
        """Return 1 if upstream's scorer gives 1, else 0; four generators are checked further."""
        return float(self._verdict(task, answer).right)

    def _verdict(self, task: Task, answer: str | None) -> Verdict:
        if answer is None:
            return Verdict(0.0, right=False)
        return self.generators.score(
            str(task.arguments["generator"]),
            cast("Knobs", task.arguments["knobs"]),
            cast("int", task.arguments["place"]),
            str(task.arguments["question"]),
            answer,
        )

    def official_scores(self, task: Task, trajectory: Trajectory) -> Mapping[str, float]:
        """Return `accuracy` (fully right) and `score` (upstream's, with partial scores)."""
        return {
            "accuracy": float(trajectory.is_right),
            "score": self._verdict(task, trajectory.answer).score,
        }

    def demonstrate(self, task: Task) -> Script:
        """Yield the gold answer, after worked steps if the generator has them."""
        if not _has_answer(task):
            raise GaveUp("no_answer_revealed")
        yield _worked_answer(task)

    def gold_script(self, task: Task) -> Script:
        """Yield the gold answer.

        Raises:
            GaveUp: the task is of one of the two generators that reveal no answer.
        """
        if not _has_answer(task):
            raise GaveUp(f"{task.arguments['generator']} reveals no answer, so none can be tried")
        return super().gold_script(task)

    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """Return worked answers of training tasks, under prompts with shuffled words.

        Raises:
            DataError: no task has an answer.
        """
        del knowledge
        answered = [task for task in train if _has_answer(task)]
        if not answered:
            raise DataError("procedural: no generator of these reveals an answer to read")
        return WorkedReading(answered)

    def report_groups(self, task: Task) -> Mapping[str, str]:
        """Return the task's generator and level."""
        generator = str(task.arguments.get("generator", ""))
        return {"generator": generator, "level": f"{generator} {task.extra.get('level', 1)}"}

    def answer_settings(self) -> Mapping[str, object]:
        """Return no settings: a task contains everything that its answer depends on."""
        return {}


def _has_answer(task: Task) -> bool:
    return task.verifier.gold != (UNTOLD,)


def _worked_answer(task: Task) -> FinalAnswer:
    generator, (gold, *_) = str(task.arguments["generator"]), task.verifier.gold
    return FinalAnswer(gold, worked(generator, task.question, gold))


class WorkedReading:
    """Worked answers, from which calculating is learned before any question."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks

    def write(self, rng: random.Random) -> Log:
        """Return a worked answer under its shuffled prompt."""
        task = rng.choice(self._tasks)
        # alphabetic words change places; worked steps use the numbers in their order, so that
        # shuffled numbers would leave nothing to copy from
        words = task.question.split()
        places = [place for place, word in enumerate(words) if word.isalpha()]
        shuffled = [words[place] for place in rng.sample(places, len(places))]
        for place, word in zip(places, shuffled, strict=True):
            words[place] = word
        return Log(" ".join(words), (_worked_answer(task),))

    def texts(self, rng: random.Random) -> Iterator[str]:
        """Yield questions, thoughts and answers."""
        del rng
        for task in self._tasks:
            answer = _worked_answer(task)
            yield from (task.question, answer.thought or "", answer.text)


def answer_in(text: str) -> str:
    """Return the content of the last pair of answer tags, or the text itself, stripped."""
    found = split_blocks(text, *ANSWER).inside
    return (found[-1] if found else text).strip()

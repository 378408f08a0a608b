"""Checks of a family before training: gold answers, demonstrations, repeated episodes, splits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.environments.benchmarks import check_golds
from espalier.environments.contract import Environments
from espalier.environments.family import Family
from espalier.environments.funnel import Funnel
from espalier.environments.mixins import (
    FamilyQuestion,
    HasBenchmarks,
    Teacher,
    no_public_format,
)
from espalier.environments.teaching import GaveUp, play_script
from espalier.records import DataError, NullTracker, Split, Task
from espalier.records.trajectory import Trajectory

_REPEATED = 8
"""Number of tasks whose gold script is played twice."""


@dataclass(frozen=True, slots=True)
class FamilyCheck:
    """The results of a check."""

    tools: tuple[str, ...]
    tasks: int
    accepted: int
    """Number of tasks whose own gold answer gets the full score."""
    refused: int
    """Number of tasks for which another task's gold answer gets less."""
    untried: int
    """Number of tasks on which no wrong answer was tried."""
    repeated: int
    """Number of tasks whose episode was the same when played twice."""
    demonstrated: int
    """Number of training tasks that the teacher solved; 0 without a teacher, and for a public file,
    which is not trained on."""
    faults: tuple[str, ...]


def check_family(
    family: Family[Any], knowledge: Path, count: int, benchmark: Path | None = None
) -> FamilyCheck:
    """Play gold answers and demonstrations of a family, and return the results.

    Args:
        family: the family to check.
        knowledge: folder of the knowledge artifact.
        count: maximum number of tasks.
        benchmark: a public file to use instead of the family's own held-out tasks.

    Raises:
        DataError: no tasks can be generated or read.
    """
    with ExitStack() as opened:
        questions: Mapping[Split, Sequence[FamilyQuestion]] = {}
        if benchmark is None:
            questions = family.questions(knowledge, Funnel(), NullTracker())
            tasks = [question.task for question in questions["heldout"]][:count]
            over = opened.enter_context(family.environments(knowledge))
            environments = over("full")
        else:
            if not isinstance(family, HasBenchmarks):
                raise DataError(no_public_format(benchmark, family.name))
            tasks = list(family.read_benchmark(benchmark))[:count]
            environments = opened.enter_context(family.benchmark_environments(benchmark, knowledge))
        golds = check_golds(family, tasks, environments)
        unlike = [task for task in tasks[:_REPEATED] if not _repeats(family, task, environments)]
        faults = [f"{fault.task_id}: {fault.fault}" for fault in golds.faults]
        if not golds.accepted and type(family).gold_script is Family[Any].gold_script:
            faults.append(
                f"no gold answer is accepted: {family.name} has no `gold_script` of its own, and "
                "the default gives the gold as one message. Where tools have to be called, or the "
                "answer is written otherwise, override `Family.gold_script`"
            )
        if golds.untried == len(tasks):
            faults.append(_untried(family, tasks))
        faults += [f"{task.task_id}: its episode differs the second time" for task in unlike]
        faults += _asked_twice(questions)
        demonstrated = 0
        if questions and isinstance(family, Teacher):
            shown = list(questions["train"])[:count]
            demonstrated, reasons = _demonstrated(family, knowledge, shown)
            if not demonstrated:
                faults.append(f"the teacher solves none of {len(shown)} training tasks: {reasons}")
    return FamilyCheck(
        tools=tuple(spec.name for spec in family.specs),
        tasks=len(tasks),
        accepted=golds.accepted,
        refused=golds.refused,
        untried=golds.untried,
        repeated=len(tasks[:_REPEATED]) - len(unlike),
        demonstrated=demonstrated,
        faults=tuple(faults),
    )


def _untried(family: Family[Any], tasks: Sequence[Task]) -> str:
    golds = {task.verifier.gold for task in tasks}
    alike = f"have the gold answer {tasks[0].verifier.gold[0][:80]!r}"
    what = alike if len(golds) == 1 else "have one answer by `answer_key`"
    advice = (
        "Check tasks of which each names what solves it as `gold` of `make_task`, or override "
        "`Family.answer_key`"
    )
    if type(family).answer_key is not Family[Any].answer_key:
        advice = (
            f"Check more than {len(tasks)}, with a larger --count, until one has another answer"
        )
    return (
        f"no wrong answer was tried: all {len(tasks)} tasks {what}, so nothing shows that a wrong "
        f"one is refused. {advice}"
    )


def _repeats(family: Family[Any], task: Task, environments: Environments) -> bool:
    """Return whether two fresh episodes of the gold script have equal observations and reward."""
    first, second = (_played(family, task, environments) for _ in range(2))
    return first == second


def _played(family: Family[Any], task: Task, environments: Environments) -> object:
    try:
        played = asyncio.run(play_script(environments, task, family.gold_script(task)))
    except GaveUp as reason:
        return str(reason)
    said = [(message.role, message.content) for message in played.messages]
    return said, dict(played.reward), played.finish_reason


def _asked_twice(questions: Mapping[Split, Sequence[FamilyQuestion]]) -> list[str]:
    splits: dict[str, set[str]] = {}
    for split, asked in questions.items():
        for question in asked:
            splits.setdefault(question.task.question, set()).add(split)
    shared = [question for question, found in splits.items() if len(found) > 1]
    if not shared:
        return []
    return [f"{len(shared)} questions stand in two splits, the first is {shared[0][:80]!r}"]


def _demonstrated(
    family: Teacher, knowledge: Path, questions: Sequence[FamilyQuestion]
) -> tuple[int, str]:
    """Return how many questions the teacher solved, and why it did not solve the others."""
    reasons: Counter[str] = Counter()
    with family.teacher(knowledge, Funnel()) as demonstrate:
        for question in questions:
            shown = demonstrate(question, "")
            reasons["" if isinstance(shown, Trajectory) else shown.reason] += 1
    solved = reasons.pop("", 0)
    return solved, ", ".join(f"{reason} {number}" for reason, number in reasons.items())

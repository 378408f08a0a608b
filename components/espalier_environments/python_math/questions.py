"""The questions of python_math by split, and the scripts that demonstrate their solutions."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from espalier.config import Profile
from espalier.environments.funnel import Funnel
from espalier.environments.teaching import GaveUp, Script
from espalier.records import (
    DataError,
    FinalAnswer,
    Message,
    Split,
    Task,
    TaskMetadata,
    ToolCall,
    ToolCalls,
    Verifier,
    task_id_of,
)
from espalier_environments.python_math.arithmetic import VARIABLE, Calculation
from espalier_environments.python_math.problems import DealtProblem, load_problems
from espalier_environments.python_math.stories import StoryGenerator, story_text

_READY_TO_ANSWER = "answer"
"""Thought before the answer."""
UNKNOWN_NAME = "unknown_name"
"""The detour: a program that prints an undefined name; the next turn reads the NameError."""
MAX_LINES_BEFORE_DETOUR = 5
"""Longer programs take no detour: an episode's token limit would cut them off."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class MathQuestion:
    """A task, and the plan and the program that solve it."""

    task: Task
    plan: str
    program: str

    def detour_taken(self, detour: str) -> str:
        """Return `detour` if the program is short enough to take one, else ""."""
        return detour if self.program.count("\n") < MAX_LINES_BEFORE_DETOUR else ""


def program_script(question: MathQuestion, *, detour: bool) -> Script:
    """Run the question's program and answer with the last number that it prints."""
    program = question.program
    if detour:
        yield _run(question.plan, f"{program.rpartition('print')[0]}print({VARIABLE * 2})")
    printed = yield _run(question.plan, program)
    numbers = _NUMBER.findall(printed)
    if not numbers or not printed.succeeded:
        raise GaveUp("program_failed")
    answer = numbers[-1].removesuffix(".0")
    yield FinalAnswer(rf"\boxed{{{answer}}}", _READY_TO_ANSWER)


def _run(plan: str, program: str) -> ToolCalls:
    return ToolCalls((ToolCall(name="python", arguments={"code": program}),), plan)


SPLITS: tuple[Split, ...] = ("train", "dev", "heldout")
STORY, OWN = "story", "own"
"""Kinds of problems."""
_PLAN_OF_OWN = "compute"


def make_math_questions(
    profile: Profile, knowledge: Path, funnel: Funnel
) -> dict[Split, list[MathQuestion]]:
    """Return the shuffled questions of each split: the user's problems if any, else stories.

    Raises:
        DataError: a split would be empty.
    """
    config = profile.synthesis
    asked = dict(
        zip(SPLITS, (config.train_tasks, config.dev_tasks, config.heldout_tasks), strict=True)
    )
    own = load_problems(knowledge)
    questions: dict[Split, list[MathQuestion]] = {}
    for split in SPLITS:
        rng = random.Random(f"{profile.seed}/{split}/mixed")
        if own:
            found = [_own_question(dealt) for dealt in own if dealt.split == split]
        else:
            generator = StoryGenerator(split, config, profile.seed, funnel)
            wording = random.Random(f"{profile.seed}/{split}/wording")
            drawn = generator.calculations(asked[split])
            found = [_story_question(calculation, split, wording) for calculation in drawn]
        rng.shuffle(found)
        if len(found) > asked[split]:
            funnel.count(f"{split}.own_questions", "more_than_asked_for", len(found) - asked[split])
        questions[split] = found[: asked[split]]
    if empty := [split for split, found in questions.items() if not found]:
        raise DataError(
            f"synthesis: no problem for {', '.join(empty)}. Give more problems in "
            "environment.problems, or raise splits.heldout_share and splits.dev_share"
        )
    return questions


def _story_question(calculation: Calculation, split: Split, rng: random.Random) -> MathQuestion:
    metadata = TaskMetadata(
        split=split,
        source="arithmetic",
        pattern=" > ".join(change.label for change in calculation.changes),
        difficulty=len(calculation.changes),
        extra={"kind": STORY, "hops": len(calculation.changes), "query": calculation.canonical},
    )
    task = _task(
        story_text(calculation, rng), str(calculation.values[-1]), calculation.canonical, metadata
    )
    return MathQuestion(task, calculation.plan, calculation.program)


def _own_question(dealt: DealtProblem) -> MathQuestion:
    """Return a user's problem, demonstrated by computing the calculator notes of its solution."""
    problem = dealt.problem
    steps = max(1, len(problem.expressions))
    metadata = TaskMetadata(
        split=dealt.split, source=OWN, difficulty=steps, extra={"kind": OWN, "hops": steps}
    )
    task = _task(problem.question, problem.answer, problem.question, metadata)
    program = "\n".join(f"print({expression})" for expression in problem.expressions)
    return MathQuestion(task, _PLAN_OF_OWN, program or f"print({problem.answer})")


def _task(question: str, gold: str, text: str, metadata: TaskMetadata) -> Task:
    return Task(
        task_id=task_id_of(metadata.split, text),
        prompt=(Message(role="user", content=question),),
        environment="python_math",
        verifier=Verifier(kind="math_equivalence", gold=(gold,)),
        metadata=metadata,
    )

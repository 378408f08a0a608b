r"""Mathematics with a Python interpreter (ReTool, Feng et al. 2025, arXiv:2504.11536).

The policy calls `python(code)`, reads what the program printed, and answers, in \boxed{} or not.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from espalier.config import AbsoluteZeroConfig, EnvironmentConfig, Profile
from espalier.environments.contract import Environments, EnvironmentsOver, in_own_time
from espalier.environments.demonstrations import Rejected
from espalier.environments.episode import EpisodeRules, TurnResults
from espalier.environments.family import Family
from espalier.environments.funnel import Funnel
from espalier.environments.interpreter import (
    PythonRuns,
    SeparateRuns,
    SessionRuns,
    python_tool,
)
from espalier.environments.mixins import (
    Demonstrate,
    FamilyQuestion,
    HasBenchmarks,
    MakesCanaries,
    MakesQuestions,
    ProposesTasks,
    Teacher,
    TeachesReading,
)
from espalier.environments.proposals import TaskProposer
from espalier.environments.reading import ReadingMaterial
from espalier.environments.teaching import ScriptTeacher
from espalier.environments.tools import Tool
from espalier.records import Draft, Split, Task, Tracker
from espalier.records.trajectory import Trajectory
from espalier.rewards.math_equivalence import final_answer
from espalier.rewards.verdicts import is_right, retool_reward
from espalier.sandbox.choice import PoolThread, sandbox_pool
from espalier_environments.python_math.benchmarks import read_problems
from espalier_environments.python_math.calculating import CalculatingRuns, Calculations
from espalier_environments.python_math.config import PythonMathConfig
from espalier_environments.python_math.execution import is_proven
from espalier_environments.python_math.problems import deal_problems, save_problems
from espalier_environments.python_math.questions import (
    UNKNOWN_NAME,
    MathQuestion,
    make_math_questions,
    program_script,
)
from espalier_environments.python_math.scratch import ScratchWriter

INSTRUCTIONS = (
    "Solve the problem. You may run several Python programs, whose printed output comes back. Give "
    "the final answer as \\boxed{answer}.\n"
)


class PythonMath(
    MakesQuestions,
    Family[PythonMathConfig],
    Teacher,
    TeachesReading,
    ProposesTasks,
    MakesCanaries,
    HasBenchmarks,
):
    """The family of mathematics with a Python interpreter."""

    name = "python_math"
    reads_symbols = True
    config = PythonMathConfig
    instructions = INSTRUCTIONS
    splits_digits = True
    detours = (UNKNOWN_NAME,)
    self_play = frozenset({"absolute_zero"})

    @classmethod
    def check(cls, profile: Profile) -> None:
        """Check that `synthesis.chain_weights` allow any number of steps."""
        if not sum(profile.synthesis.chain_weights):
            raise ValueError("synthesis.chain_weights are all 0: stories have one to four steps")

    @classmethod
    def outcome_span(cls, settings: EnvironmentConfig) -> tuple[float, float]:
        """Return ReTool's range: a wrong answer is -1."""
        del settings
        return (-1.0, 1.0)

    def tools(self) -> Sequence[Tool]:
        """Return the interpreter's schema; `environments` binds it to sandboxes."""
        return (python_tool(_no_sandboxes, self.settings.max_observation_characters),)

    def verify(self, task: Task, answer: str | None) -> float:
        """Return 1 if the answer is equivalent to the gold answer, else 0; nothing is executed."""
        return float(is_right(answer, task.verifier))

    def unfindable_answer(self, rng: random.Random) -> str:
        """Return a number of twelve digits."""
        return str(rng.randrange(10**11, 10**12))

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open a pool of sandboxes, and environments whose programs run in it."""
        del knowledge
        with sandbox_pool(self.settings.sandbox, self.profile.kubernetes) as sandboxes:
            environments = self.environments_in(sandboxes)
            yield lambda _view: environments

    def environments_in(self, sandboxes: PoolThread) -> Environments:
        """Return environments whose programs run in these sandboxes."""
        known = Calculations()
        return self.environments_by(self.tools(), lambda _task: self._rules_in(sandboxes, known))

    def _rules_in(self, sandboxes: PoolThread, known: Calculations) -> EpisodeRules:
        within_s = self.settings.code_timeout_s
        runs: PythonRuns = (
            SessionRuns(sandboxes, within_s)
            if self.settings.session == "stateful"
            else CalculatingRuns(sandboxes, within_s, known)
        )
        # programs that prove the answer never share a sandbox with the policy's
        checks = SeparateRuns(sandboxes, within_s, judging=True)
        return self.rules_over(runs, checks)

    def rules_over(self, runs: PythonRuns, checks: PythonRuns) -> EpisodeRules:
        """Return the rules of one episode, given runners for the policy's programs and checks."""
        tool = python_tool(lambda: runs, self.settings.max_observation_characters)
        return replace(
            self.rules((tool,)),
            verify=partial(self._judged, checks),
            read_answer=final_answer,
            on_end=runs.end,
        )

    async def _judged(
        self, checks: PythonRuns, task: Task, answer: str | None, turns: TurnResults
    ) -> float:
        """Return ReTool's reward for the verdict."""
        if task.verifier.kind == "execution":
            correct = await is_proven(task, answer, checks)
        else:
            correct = await in_own_time(self.verify, task, answer) > 0
        return retool_reward(
            correct=correct,
            num_messages=2 + 2 * len(turns),
            credit_per_message=self.settings.credit_per_message,
        )

    def ingest(self, draft: Draft, tracker: Tracker) -> None:
        """Split and store the user's problems; store nothing if stories are generated."""
        problems = deal_problems(self.settings, self.profile.splits, tracker.note)
        draft.rows["problems"] = save_problems(problems, draft.path)
        files = (self.settings.problems, self.settings.heldout_problems)
        names = [path.name for path in files if path]
        source = f"Word problems of {' and '.join(names)}." if names else "Made by espalier."
        (draft.path / "attribution.txt").write_text(f"{source}\n", encoding="utf-8")

    def questions(
        self, knowledge: Path, funnel: Funnel, tracker: Tracker
    ) -> dict[Split, Sequence[FamilyQuestion]]:
        """Return stories, or the user's problems."""
        del tracker
        found = make_math_questions(self.profile, knowledge, funnel)
        return cast("dict[Split, Sequence[FamilyQuestion]]", found)

    @contextmanager
    def teacher(self, knowledge: Path, funnel: Funnel) -> Generator[Demonstrate]:
        """Open a teacher that runs the question's program and answers with the last number."""
        del funnel
        with self.environments(knowledge) as environments_over:
            teacher = ScriptTeacher(environments_over("train"))

            def demonstrate(question: FamilyQuestion, detour: str) -> Trajectory | Rejected:
                own = cast("MathQuestion", question)
                taken = own.detour_taken(detour)
                begin = partial(program_script, own, detour=bool(taken))
                return teacher.demonstrate(question.task, begin, detour=taken)

            yield demonstrate

    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """Return scratch logs: calculations without a question."""
        del knowledge
        return ScratchWriter([task.question for task in train])

    def read_benchmark(self, path: Path) -> Sequence[Task]:
        """Return problems of GSM8K, MATH, AIME or AMC."""
        return read_problems(path)

    def report_groups(self, task: Task) -> Mapping[str, str]:
        """Return the kind and number of steps; for a benchmark, the groups in its file."""
        if isinstance(said := task.extra.get("benchmark"), dict):
            return {name: str(group) for name, group in said.items()}
        return {"kind": str(task.extra.get("kind", "")), "steps": str(task.extra.get("hops", 1))}

    def answer_settings(self) -> Mapping[str, object]:
        """Return the settings of the interpreter."""
        elsewhere = {"name", "problems", "heldout_problems", "sandbox"}
        return {"python": self.settings.model_dump(mode="json", exclude=elsewhere)}

    def proposer(self, knowledge: Path, accepted: Path) -> TaskProposer:
        """Return Absolute Zero's proposer of triples of program, input and output."""
        from espalier_environments.python_math.absolute_zero.proposer import (
            ChainDrafts,
            Drafts,
            TripleProposer,
        )
        from espalier_environments.python_math.absolute_zero.teacher import TeacherDrafts

        config = self.profile.self_play
        if not isinstance(config, AbsoluteZeroConfig):
            return super().proposer(knowledge, accepted)
        drafts: Drafts = ChainDrafts(config.asked)
        if config.proposer == "teacher":
            drafts = TeacherDrafts(config.asked, self.profile.teacher.endpoint)
        return TripleProposer(drafts, self.settings, self.profile.kubernetes)


def _no_sandboxes() -> PythonRuns:
    raise AssertionError("only the schema of this tool is asked for")

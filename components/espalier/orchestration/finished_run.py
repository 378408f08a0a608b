"""A finished run as commands use it: its profile, its suite, and chat with its policy."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from espalier.chain import expect_of_one_run
from espalier.config import HELDOUT, Profile, parse_profile, parsed_override
from espalier.determinism import prepare_torch
from espalier.evaluation import (
    QuestionRow,
    Suite,
    compare_answers,
    make_suite,
    questions_table,
    summarize,
)
from espalier.evaluation.contamination import (
    Contamination,
    SuitePrints,
    Training,
    contamination,
    require_uncontaminated,
)
from espalier.evaluation.lineage import policy_files_digest
from espalier.evaluation.results import (
    f1_column,
    group_columns,
    knowledge_columns,
    loss_columns,
)
from espalier.evaluation.suite import VIEW
from espalier.evaluation.suite_results import rows_table
from espalier.orchestration.results import aligned
from espalier.orchestration.run_directory import PROFILE_NAME
from espalier.records import (
    ArtifactError,
    Message,
    RegistryError,
    Task,
    open_artifact,
    read_tasks,
)
from espalier.records.trajectory import Trajectory
from espalier.registry.promotion import Compare, EvaluateChampion, EvaluateSuite
from espalier.registry.registration import read_result
from espalier.steps.profiles import saved_profile

if TYPE_CHECKING:
    import pandas as pd

    from espalier.rollout.asking import RunTasks
    from espalier.rollout.roller import TrajectorySampler


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run's folder and its profile."""

    path: Path
    profile: Profile

    def folder(self, artifact: str) -> Path:
        """Path of an artifact of the chain, published or not."""
        return self.path / artifact

    def changed(self, overrides: Sequence[str]) -> Profile:
        """The profile with `section.key=value` changes.

        Raises:
            ProfileError: a change is invalid.
        """
        tables = json.loads(self.profile.model_dump_json())
        changes = [parsed_override(one) for one in overrides]
        return parse_profile(tables, changes, self.path / PROFILE_NAME)


def open_finished_run(run_dir: Path) -> FinishedRun:
    """Read a run's profile.

    Raises:
        ArtifactError: the folder is not the folder of a run.
        ProfileError: its profile cannot be read.
    """
    path = run_dir / PROFILE_NAME
    if not path.is_file():
        raise ArtifactError(
            f"{run_dir}: not the folder of a run (no {PROFILE_NAME}). Give the folder that "
            "`espalier run --out` filled"
        )
    return FinishedRun(run_dir, saved_profile(path.read_text(encoding="utf-8")))


class JudgedPolicy(NamedTuple):
    """Figures of a policy on a suite, and their table."""

    figures: dict[str, Any]
    """`suite` (digest, n) and the fields of a policy in results.json."""
    table: str


def evaluate_policy(run_dir: Path, policy_dir: Path) -> JudgedPolicy:
    """Judge a model directory on the held-out suite of `run_dir`.

    Raises:
        ArtifactError: the run has not published knowledge and tasks, or they are damaged.
        PolicyError: not a policy directory.
    """
    run = open_finished_run(run_dir)
    expect_of_one_run(run_dir, "knowledge", "accepted")
    suite = _suite_of(run)
    overlap = _overlap(run, policy_dir, suite)
    rows = _rows(run, policy_dir)
    found = summarize(rows, run.profile.evaluation, run.profile.seed)
    num_tasks = len(suite.tasks)
    figures = {
        "suite": {"digest": suite.digest, "n": num_tasks},
        **found,
        "contamination": overlap.as_dict(num_tasks),
    }
    table = _table(policy_dir, found)
    return JudgedPolicy(figures, f"{table}\n{policy_dir}: {overlap.said(num_tasks)}")


def _overlap(run: FinishedRun, policy_dir: Path, suite: Suite) -> Contamination:
    """The held-out tasks that the policy was trained on, as far as its own run tells.

    Raises:
        DataError: there are more than `evaluation.contamination` allows.
    """
    from espalier.orchestration.lineage import training_of_directory  # which opens runs by this one

    config = run.profile.evaluation.contamination
    tasks = run.folder("accepted") / "tasks"
    seen = [task for split in ("train", "dev") for task in read_tasks(tasks / f"{split}.jsonl")]
    prints = SuitePrints.of(suite.family, suite.tasks, seen, config.run_words)
    found = contamination(training_of_directory(policy_dir), prints, config)
    require_uncontaminated(
        found, config, suite=HELDOUT, model=str(policy_dir), num_tasks=len(suite.tasks)
    )
    return found


def judge_of(run: FinishedRun) -> EvaluateChampion:
    """A function that judges a champion on the suite of `run`, for the promotion gate."""

    def judge(policy_dir: Path, suite_dir: Path) -> pd.DataFrame:
        judged_on, here = read_result(suite_dir).suite_digest, _suite_of(run).digest
        if judged_on != here:
            raise RegistryError(
                f"{run.path}: its suite is {here[:12]}, but the version was judged on "
                f"{judged_on[:12]}. Give the run that made the version with --run RUN"
            )
        return questions_table({"trained": _rows(run, policy_dir)}).to_pandas()

    return judge


def suite_judge_of(run: FinishedRun, training: Training) -> EvaluateSuite:
    """A function that judges a policy with this training on a suite of the profile of `run`."""

    def judge(policy_dir: Path, suite: str, digest: str) -> pd.DataFrame:
        from espalier.evaluation.run_suites import EvaluatedPolicy, judge_suite

        prepare_torch(run.profile.threads)
        artifacts = {name: run.folder(name) for name in ("knowledge", "accepted")}
        for path in artifacts.values():
            open_artifact(path)
        policies = {
            "trained": EvaluatedPolicy(policy_dir, policy_files_digest(policy_dir), training)
        }
        with TemporaryDirectory() as work:
            found = judge_suite(suite, run.profile, policies, artifacts, Path(work))
        if (here := found.figures["digest"]) != digest:
            raise RegistryError(
                f"the suite {suite} of {run.path} is now {here[:12]}, but the version was judged "
                f"on {digest[:12]}: its tasks or its settings have changed. "
                "Restore them, or run the evaluation again"
            )
        return rows_table(found.rows["trained"]).to_pandas()

    return judge


def paired_interval(profile: Profile) -> Compare:
    """The paired comparison of the evaluation stage, for the promotion gate."""

    def compare(
        challenger: Mapping[str, float], baseline: Mapping[str, float]
    ) -> tuple[float, float, float]:
        return compare_answers(challenger, baseline, profile.evaluation, profile.seed)

    return compare


def _suite_of(run: FinishedRun) -> Suite:
    knowledge = open_artifact(run.folder("knowledge"))
    open_artifact(run.folder("accepted"))
    heldout = read_tasks(run.folder("accepted") / "tasks" / "heldout.jsonl")
    return make_suite(run.profile, heldout, knowledge.content)


def _rows(run: FinishedRun, policy_dir: Path) -> list[QuestionRow]:
    from espalier.evaluation import policies
    from espalier.rollout.asking import run_environments

    prepare_torch(run.profile.threads)
    tasks = read_tasks(run.folder("accepted") / "tasks" / "heldout.jsonl")
    with run_environments(run.path, run.profile) as environments_over:
        return policies.evaluate_policy(policy_dir, tasks, environments_over(VIEW), run.profile)


def _table(policy_dir: Path, figures: dict[str, Any]) -> str:
    ends = " to ".join(f"{100 * end:.1f}" for end in figures["ci95"])
    row = {
        "policy": str(policy_dir),
        "n": str(figures["n"]),
        "EM %": f"{100 * figures['em']:.1f}",
        "interval": ends,
        **knowledge_columns(figures, [figures]),
        **f1_column(figures, [figures]),
        "tool calls": f"{figures['tool_calls']:.2f}",
    }
    return aligned([row | loss_columns(figures, [figures]) | group_columns(figures, [figures])])


class Conversation:
    """Chat with a policy: every question or task is an episode of its own."""

    def __init__(self, roller: TrajectorySampler, tasks: RunTasks, seed: int) -> None:
        self._roller = roller
        self._tasks = tasks
        self._seed = seed

    @classmethod
    @contextmanager
    def opened(cls, run_dir: Path, policy_dir: Path | None = None) -> Generator[Self]:
        """A conversation with the trained policy of `run_dir`, or with another policy.

        Args:
            run_dir: the run that gives knowledge, tasks and episode limits.
            policy_dir: any Hugging Face directory; None means the run's trained policy.

        Raises:
            ArtifactError: the run has not published knowledge, tasks and policy, or they are
                damaged.
            PolicyError: not a policy directory.
        """
        from espalier.rollout.asking import opened_agent

        run = open_finished_run(run_dir)
        prepare_torch(run.profile.threads)
        expect_of_one_run(run_dir, "knowledge", "accepted")
        if policy_dir is None:
            expect_of_one_run(run_dir, "trained_policy")
            policy_dir = run.folder("trained_policy") / "policy"
        with opened_agent(run.path, run.profile, policy_dir) as (roller, tasks):
            yield cls(roller, tasks, run.profile.seed)

    def ask(self, question: str) -> Trajectory:
        """Roll out one episode for the question, decoded greedily; it has no gold answer.

        Raises:
            DataError: the run's tasks have a state of their own, which a question lacks.
        """
        return self.play(self._tasks.of_question(question))

    def task(self, task_id: str) -> Task:
        """A task of the run, of any split.

        Raises:
            DataError: the run has no such task.
        """
        return self._tasks.named(task_id)

    def play(self, task: Task) -> Trajectory:
        """Roll out one episode of a task, decoded greedily."""
        (trajectory,) = self._roller.roll_out([task], samples=1, temperature=0.0, seed=self._seed)
        return trajectory


_SPEAKERS = {"user": "question", "assistant": "policy", "tool": "found", "system": "system"}


def transcript(trajectory: Trajectory, task: Task | None = None) -> str:
    """The episode's messages, one per line, and its answer as the last line.

    Args:
        trajectory: the episode.
        task: the task that was played. The questions are then shown too, and the reward.
    """
    lines = [
        f"{_SPEAKERS[message.role]:<9} {shown(message)}"
        for message in trajectory.messages
        if task is not None or message.role != "user"
    ]
    answer = trajectory.answer or f"none ({trajectory.finish_reason.value})"
    lines.append(f"{'answer':<9} {answer}")
    if task is not None:
        lines.append(f"{'gold':<9} {' | '.join(task.verifier.gold)}")
        terms = ", ".join(f"{name} {value:g}" for name, value in trajectory.reward.items())
        lines.append(f"{'reward':<9} {terms or 'none: the environment was lost'}")
    return "\n".join(lines)


def shown(message: Message) -> str:
    """A message in one line: thought, calls, text."""
    calls = [
        f"{call.name}({', '.join(f'{name}={value}' for name, value in call.arguments.items())})"
        for call in message.tool_calls
    ]
    thought = [f"({message.thought})"] if message.thought else []
    return " ".join((*thought, *calls, *filter(None, [message.content])))

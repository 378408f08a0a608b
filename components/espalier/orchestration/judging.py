"""Judging any policy on the held-out suite of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from espalier.config import Profile
from espalier.determinism import prepare_torch
from espalier.environments import family_of
from espalier.evaluation import (
    QuestionRow,
    Suite,
    compare_answers,
    make_suite,
    summarize,
)
from espalier.evaluation.results import group_columns
from espalier.evaluation.suite import VIEW
from espalier.orchestration.finished_run import FinishedRun, open_finished_run
from espalier.orchestration.results import aligned
from espalier.records import RegistryError, open_artifact, read_tasks
from espalier.registry.gate import Compare, JudgeChampion
from espalier.registry.results import read_result

if TYPE_CHECKING:
    import pandas as pd


class JudgedPolicy(NamedTuple):
    """A policy's figures on a suite."""

    figures: dict[str, Any]
    """`suite` (digest, n) and what results.json holds for one policy."""
    table: str


def evaluate_policy(run_dir: Path, policy_dir: Path) -> JudgedPolicy:
    """Judge a model directory on the held-out suite of `run_dir`.

    Raises:
        ArtifactError: the run has not published knowledge and tasks, or they were damaged.
        PolicyError: not a policy directory.
    """
    run = open_finished_run(run_dir)
    suite = _suite_of(run)
    rows = _rows(run, policy_dir)
    found = summarize(rows, run.profile.evaluation, run.profile.seed)
    figures = {"suite": {"digest": suite.digest, "n": len(suite.tasks)}, **found}
    return JudgedPolicy(figures, _table(policy_dir, found))


def judge_of(run: FinishedRun) -> JudgeChampion:
    """What asks a champion the questions of `run`'s suite."""

    def judge(policy_dir: Path, suite_dir: Path) -> pd.DataFrame:
        import pandas as pd

        asked, here = read_result(suite_dir).suite_digest, _suite_of(run).digest
        if asked != here:
            raise RegistryError(
                f"{run.path}: its suite is {here[:12]}, but the version was judged on "
                f"{asked[:12]}. Name the run that made the version with --run RUN"
            )
        return pd.DataFrame([asdict(row) for row in _rows(run, policy_dir)])

    return judge


def paired_interval(profile: Profile) -> Compare:
    """The comparison that the evaluation of `profile` reports, for the promotion gate."""

    def compare(
        challenger: Mapping[str, bool], baseline: Mapping[str, bool]
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

    prepare_torch(run.profile.threads)
    tasks = read_tasks(run.folder("accepted") / "tasks" / "heldout.jsonl")
    with family_of(run.profile).environments(run.folder("knowledge")) as environments_over:
        return policies.evaluate_policy(policy_dir, tasks, environments_over(VIEW), run.profile)


def _table(policy_dir: Path, figures: dict[str, Any]) -> str:
    ends = " to ".join(f"{100 * end:.1f}" for end in figures["ci95"])
    row = {
        "policy": str(policy_dir),
        "n": str(figures["n"]),
        "EM %": f"{100 * figures['em']:.1f}",
        "interval": ends,
        "F1 %": f"{100 * figures['f1']:.1f}",
        "tool calls": f"{figures['tool_calls']:.2f}",
    }
    return aligned([row | group_columns(figures, [figures])])

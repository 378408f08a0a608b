"""Evaluate policies on the suites of a profile, for the evaluate stage and the promotion gate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from espalier.config import Profile
from espalier.evaluation.attempts import Attempt, AttemptFile
from espalier.evaluation.contamination import (
    SuitePrints,
    Training,
    contamination,
    require_uncontaminated,
)
from espalier.evaluation.players import PolicyPlayer, judge
from espalier.evaluation.suite_results import TaskRow, paired_scores, suite_figures, task_rows
from espalier.evaluation.suites import (
    KnowledgeOf,
    NamedSuite,
    ingested,
    opened_suite,
    suite_profile,
)
from espalier.records import json_digest


class EvaluatedPolicy(NamedTuple):
    """A policy's folder, its digest, and its training data."""

    directory: Path
    digest: str
    training: Training


class SuiteJudgement(NamedTuple):
    """Result of all policies on one suite."""

    figures: dict[str, Any]
    """Facts of the suite, and the figures of each policy under `policies`."""
    rows: dict[str, list[TaskRow]]
    """Policy -> one row per task."""


def judge_suite(
    name: str,
    profile: Profile,
    policies: Mapping[str, EvaluatedPolicy],
    artifacts: Mapping[str, Path],
    work: Path,
) -> SuiteJudgement:
    """Evaluate every policy on one suite of the profile; equal weights are played only once.

    Args:
        name: name of the suite in [evaluation.suites].
        profile: profile of the run.
        policies: the policies by their name in results.
        artifacts: `knowledge` and `accepted` of the run.
        work: folder for finished attempts. A policy that was interrupted starts over, so that a
            resumed stage publishes the same as an unbroken one.

    Raises:
        DataError: the suite's file is not readable as tasks, or the profile refuses the
            contamination of a policy.
        EnvironmentLostError: too many attempts of a policy stayed lost.
    """
    config = profile.evaluation.suites[name]
    own = config.tasks is None and config.environment == profile.environment
    accepted = artifacts["accepted"] if own else None
    knowledge_of = _knowledge_of(profile, artifacts["knowledge"], work)
    own_profile = suite_profile(name, config, profile)
    with opened_suite(name, config, own_profile, knowledge_of, accepted) as suite:
        return _judged(suite, profile, policies, work)


def _knowledge_of(profile: Profile, knowledge: Path, work: Path) -> KnowledgeOf:
    def knowledge_of(suite: Profile) -> Path:
        if suite.environment.name == profile.environment.name:
            return knowledge
        return ingested(suite, work)

    return knowledge_of


def _judged(
    suite: NamedSuite, profile: Profile, policies: Mapping[str, EvaluatedPolicy], work: Path
) -> SuiteJudgement:
    config, seed = profile.evaluation, profile.seed
    run_words = config.contamination.run_words
    prints = SuitePrints.of(
        suite.family, suite.tasks, suite.seen, run_words, is_public=suite.is_public
    )
    rows: dict[str, list[TaskRow]] = {}
    figures: dict[str, Any] = {}
    for policy, evaluated in policies.items():
        found = contamination(evaluated.training, prints, config.contamination)
        require_uncontaminated(
            found,
            config.contamination,
            suite=suite.name,
            model=policy,
            num_tasks=len(suite.tasks),
        )
        attempts = _attempts(suite, evaluated, work / "suites" / suite.name)
        rows[policy] = task_rows(suite, policy, attempts, found)
        figures[policy] = {
            **suite_figures(suite, rows[policy], attempts, config, seed),
            "contamination": found.as_dict(len(suite.tasks)),
        }
    content: dict[str, Any] = {**suite.facts(), "policies": figures}
    if {"trained", "warm_start"} <= rows.keys():
        content["gain"] = {
            **paired_scores(rows["trained"], rows["warm_start"], config, seed),
            "baseline": "warm_start",
        }
    return SuiteJudgement(content, rows)


def _attempts(suite: NamedSuite, policy: EvaluatedPolicy, folder: Path) -> list[Attempt]:
    made_of = {"suite": suite.digest, "model": policy.digest, "seed": str(suite.profile.seed)}
    path = folder / f"{json_digest(made_of)[:12]}.jsonl"
    wanted = len(suite.tasks) * suite.config.attempts
    with AttemptFile.opened(path, made_of) as kept:
        is_whole = len(kept.kept) >= wanted
    if not is_whole:
        path.unlink()
    with AttemptFile.opened(path, made_of) as kept:
        return judge(PolicyPlayer(policy.directory, suite), suite, kept)

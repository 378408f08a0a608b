"""Judging a policy: roll the suite out under it, and score the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from espalier.config import Profile
from espalier.environments import EnvironmentLostError, Environments
from espalier.evaluation.judged import Judged, RolloutCost
from espalier.evaluation.kept import choose_kept
from espalier.evaluation.questions import QuestionRow, score_question
from espalier.evaluation.suite import Suite, make_suite
from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.rollout.drift import DriftCount
from espalier.rollout.roller import Roller, RollsOut


class CountingRoller(RollsOut, Protocol):
    """A roller that counts what it does."""

    @property
    def action_tokens(self) -> int:
        """Tokens sampled so far."""
        ...

    @property
    def total_tokens(self) -> int:
        """Tokens forwarded so far."""
        ...

    @property
    def seconds(self) -> float:
        """Spent in rolling out so far."""
        ...

    @property
    def drift(self) -> DriftCount:
        """How the tokens of its episodes compare with the chat template's."""
        ...


def evaluate_policy(
    policy_dir: Path, tasks: Sequence[Task], environments: Environments, profile: Profile
) -> list[QuestionRow]:
    """Judge the model directory `policy_dir` on `tasks`, as the `evaluate` stage does.

    With the tasks, knowledge, episode, search and evaluation settings of a suite, the rows may be
    compared with the stage's: same questions, same order, same verifier.

    Raises:
        PolicyError: the directory cannot be loaded, or its model cannot act.
    """
    roller = Roller.open(policy_dir, environments, profile)
    return judge_policy(roller, make_suite(profile, tasks, ""), profile.seed).rows


def judge_policy(roller: CountingRoller, suite: Suite, seed: int) -> Judged:
    """Roll the suite out greedily, then its first part by sampling, and score both.

    Raises:
        EnvironmentLostError: an environment failed under some question.
    """
    config = suite.config
    greedy = roller.roll_out(suite.tasks, samples=1, temperature=0.0, seed=seed)
    each = config.samples_per_task
    sampled = roller.roll_out(
        suite.sampled_tasks, samples=each, temperature=config.temperature, seed=seed
    )
    _expect_judged((*greedy, *sampled))
    rows = [
        # A slice past the end is empty: a question outside the sampled part has no samples.
        score_question(
            task, suite.groups[place], greedy[place], sampled[place * each : (place + 1) * each]
        )
        for place, task in enumerate(suite.tasks)
    ]
    is_right = [row.em for row in rows]
    kept = choose_kept(greedy, is_right, config.kept_trajectories)
    cost = RolloutCost(
        action_tokens=roller.action_tokens,
        total_tokens=roller.total_tokens,
        seconds=round(roller.seconds, 3),
        token_drift=roller.drift.drifted,
        compared_turns=roller.drift.turns,
    )
    return Judged(rows, kept, cost)


def _expect_judged(trajectories: Sequence[Trajectory]) -> None:
    """A policy is compared on all questions or on none: a failed tool is not a wrong answer."""
    lost = Counter(t.finish_reason.value for t in trajectories if t.is_lost)
    if lost:
        causes = ", ".join(f"{count} {reason}" for reason, count in sorted(lost.items()))
        raise EnvironmentLostError(
            f"{lost.total()} of {len(trajectories)} evaluation episodes lost their environment "
            f"({causes}). Mend the tool, or raise rollout.tool_timeout_s, and evaluate again"
        )

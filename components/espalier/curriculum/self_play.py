"""Self-play: new tasks are proposed from failed ones, tried by the policy, and kept or refused.

failed tasks of a phase -> proposed tasks -> attempts -> verdicts -> the pool of the next phase
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any, NamedTuple

from espalier.config import AbsoluteZeroConfig, PosingConfig, RZeroConfig, WebRLConfig
from espalier.curriculum.learnability import LEARNABILITY, r_zero, r_zero_code
from espalier.curriculum.pool import TaskPool
from espalier.curriculum.repetition import cluster_shares
from espalier.environments.proposals import AttemptTasks, ProposalRequest, TaskProposer, Trial
from espalier.records import Task
from espalier.records.trajectory import Trajectory


class TrialVerdict(NamedTuple):
    """Verdict on one proposed task."""

    fault: str
    """Why the task is refused; empty if it is kept."""
    reward: float | None = None
    """The proposer's reward; None if the rule has none."""


_CLUSTER_DISTANCE = 0.5
"""Mean distance (1 - BLEU) below which questions form a cluster."""


def judge_trials(trials: Sequence[Trial], config: PosingConfig) -> list[TrialVerdict]:
    """Judge the trials of a phase by the profile's rule; each has at least one attempt."""
    match config:
        case WebRLConfig():
            return [_by_value(trial, config) for trial in trials]
        case RZeroConfig():
            rewards = challenger_rewards(trials, config)
            faults = [_by_distance(trial, config) for trial in trials]
            return [TrialVerdict(*pair) for pair in zip(faults, rewards, strict=True)]
        case AbsoluteZeroConfig():
            pay = LEARNABILITY[config.reward]
            return [
                TrialVerdict(_by_extreme(trial, config), pay(trial.pass_rate)) for trial in trials
            ]


def challenger_rewards(trials: Sequence[Trial], config: RZeroConfig) -> list[float]:
    """Return a proposer's rewards: the policy's uncertainty on a task minus its repetition.

    max(0, 1 - 2 |p - 1/2| - w s), with s the share of the task's cluster (arXiv:2508.05004, sec.
    3.1). The public code gives min(p, 1 - p) - w s, which may fall below 0 (`compute_score`).
    """
    questions = [trial.task.question for trial in trials]
    shares = [0.0] * len(questions)
    if config.repetition_weight:
        shares = cluster_shares(questions, _CLUSTER_DISTANCE)
    pay = r_zero if config.reward == "r_zero" else r_zero_code
    earned = [
        pay(trial.pass_rate) - config.repetition_weight * share
        for trial, share in zip(trials, shares, strict=True)
    ]
    return [max(0.0, reward) for reward in earned] if config.reward == "r_zero" else earned


def _by_value(trial: Trial, config: WebRLConfig) -> TrialVerdict:
    """Judge by WebRL's filter: neither too hard nor too easy (arXiv:2411.02337, sec. 3.2)."""
    value = trial.pass_rate if config.value == "pass_rate" else trial.value
    low, high = config.value_band
    if math.isnan(value):
        return TrialVerdict("never_acted")
    return TrialVerdict("too_hard" if value < low else "too_easy" if value > high else "")


def _by_distance(trial: Trial, config: RZeroConfig) -> str:
    if abs(trial.pass_rate - 0.5) <= config.max_distance:
        return ""
    return "too_hard" if trial.pass_rate < 0.5 else "too_easy"


def _by_extreme(trial: Trial, config: AbsoluteZeroConfig) -> str:
    """Return the fault by Absolute Zero's filter in its public code; empty if there is none."""
    if config.kept != "all" and trial.pass_rate == 1:
        return "too_easy"
    return "too_hard" if config.kept == "non_extremes" and trial.pass_rate == 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Figures of one phase; `posed` counts the proposed tasks, kept and refused."""

    step: int
    """Number of optimizer steps done at its end."""
    failed: int
    """Number of tasks that the phase tried and never solved."""
    posed: int
    refused: Mapping[str, int]
    """Number of tasks by reason of refusal, most frequent first."""
    kept: int
    reward: float | None = None
    """The proposer's mean reward over the tried tasks, under rules that have one."""

    def line(self) -> str:
        """Return one line for the log."""
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.refused.items())
        refused = f"refused {sum(self.refused.values())}" + (f" ({reasons})" if reasons else "")
        earned = "" if self.reward is None else f", mean reward {self.reward:.2f}"
        return (
            f"step {self.step}: self-play: {self.failed} tasks failed, posed {self.posed}, "
            f"{refused}, kept {self.kept}{earned}"
        )


class SelfPlay:
    """Adds proposed tasks to a pool at every refresh; its state includes the pool's."""

    def __init__(
        self,
        config: PosingConfig,
        proposer: TaskProposer,
        pool: TaskPool,
        try_tasks: AttemptTasks,
        *,
        seed: int,
    ) -> None:
        """Begin without proposed tasks.

        Args:
            config: how many tasks to propose, and which to keep.
            proposer: proposes the tasks.
            pool: pool that training draws from.
            try_tasks: has the current policy attempt them.
            seed: seed of the run.
        """
        self.tasks: list[Task] = []
        """All tasks kept so far."""
        self.phases: list[Phase] = []
        self._config = config
        self._proposer = proposer
        self._pool = pool
        self._try = try_tasks
        self._seed = seed
        self._failed: dict[str, None] = {}
        self._solved: set[str] = set()
        self._earned: dict[str, tuple[int, float]] = {}
        """Number of tried tasks of a kind, and the sum of their rewards, by signature."""

    def observe(self, trajectories: Sequence[Trajectory]) -> None:
        """Record which tasks a step's trajectories solved or failed."""
        for trajectory in trajectories:
            if trajectory.reward["outcome"] > 0:
                self._solved.add(trajectory.task_id)
            else:
                self._failed[trajectory.task_id] = None

    def end_phase(self, step: int) -> Phase:
        """Propose tasks from the failures of the phase that ended after `step` steps; keep some.

        Raises:
            EspalierError: the proposer or the attempts failed.
        """
        failed = [task_id for task_id in self._failed if task_id not in self._solved]
        self._failed, self._solved = {}, set()
        order = ProposalRequest(
            num_tasks=self._config.posed_tasks,
            failed=[self._pool.task(task_id) for task_id in failed],
            known=self._pool.tasks,
            seed=f"posed:{self._seed}:{step}",
            earned={kind: total / tried for kind, (tried, total) in self._earned.items()},
        )
        proposed = self._proposer.propose(order)
        refused = Counter(proposed.refused)
        rewards: list[float] = []
        kept = self._kept(proposed.tasks, step, refused, rewards)
        self.tasks += kept
        phase = Phase(
            step=step,
            failed=len(failed),
            posed=len(kept) + refused.total(),
            refused=dict(sorted(refused.items(), key=lambda item: (-item[1], item[0]))),
            kept=len(kept),
            reward=mean(rewards) if rewards else None,
        )
        self.phases.append(phase)
        return phase

    def _kept(
        self, tasks: Sequence[Task], step: int, refused: Counter[str], rewards: list[float]
    ) -> list[Task]:
        """Try the tasks, add those that are kept to the pool, with their outcome."""
        trials = self._try(tasks, step) if tasks else []
        counted = [trial for trial in trials if trial.attempts]
        if len(counted) < len(trials):
            refused["environment_lost"] += len(trials) - len(counted)
        kept: list[Task] = []
        for trial, verdict in zip(counted, judge_trials(counted, self._config), strict=True):
            if verdict.reward is not None:
                rewards.append(verdict.reward)
                kind = trial.task.metadata.pattern
                tried, total = self._earned.get(kind, (0, 0.0))
                self._earned[kind] = (tried + 1, total + verdict.reward)
            if verdict.fault:
                refused[verdict.fault] += 1
                continue
            kept.append(trial.task)
            self._pool.add([trial.task])
            self._pool.observe(
                trial.task.task_id, attempts=trial.attempts, successes=trial.successes
            )
        return kept

    def kept_ids(self) -> list[str]:
        """Return the ids of the tasks inside the band."""
        return self._pool.kept_ids()

    def state(self) -> dict[str, Any]:
        """State of self-play and of its pool for a checkpoint, as plain data."""
        return {
            "pool": self._pool.state(),
            "tasks": [task.model_dump_json() for task in self.tasks],
            "phases": [asdict(phase) for phase in self.phases],
            "failed": list(self._failed),
            "solved": sorted(self._solved),
            "earned": dict(self._earned),
        }

    def restore(self, state: dict[str, Any], kept: Sequence[str]) -> None:
        """Continue from a checkpoint."""
        self.tasks = [Task.model_validate_json(text) for text in state["tasks"]]
        self.phases = [Phase(**row) for row in state["phases"]]
        self._failed = dict.fromkeys(state["failed"])
        self._solved = set(state["solved"])
        self._earned = dict(state["earned"])
        self._pool.add(self.tasks)
        self._pool.restore(state["pool"], kept)

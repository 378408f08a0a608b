"""Self-play beside the pool: failures are gathered, tasks posed, tried and judged, some kept.

a phase of training -> what it failed -> posed -> tried -> kept -> the pool of the next phase
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from espalier.config import PosingConfig
from espalier.curriculum.pool import TaskPool
from espalier.curriculum.self_play.judging import judged
from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.synthesis.self_play import Order, PosesTasks, TriesTasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What the end of one phase brought; `posed` is `kept` and all that was refused."""

    step: int
    """Optimizer steps that were done."""
    failed: int
    """Tasks that the phase tried and never solved."""
    posed: int
    refused: Mapping[str, int]
    """Reason -> tasks, those first that were refused most often."""
    kept: int
    reward: float | None = None
    """Mean of what the tried tasks earned, under rules that pay whoever poses them."""

    def line(self) -> str:
        """For a log."""
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.refused.items())
        refused = f"refused {sum(self.refused.values())}" + (f" ({reasons})" if reasons else "")
        earned = "" if self.reward is None else f", mean reward {self.reward:.2f}"
        return (
            f"step {self.step}: self-play: {self.failed} tasks failed, posed {self.posed}, "
            f"{refused}, kept {self.kept}{earned}"
        )


class SelfPlay:
    """Widens a pool at every refresh; what it has added is part of its state, and so the pool's."""

    def __init__(
        self,
        config: PosingConfig,
        poser: PosesTasks,
        pool: TaskPool,
        try_tasks: TriesTasks,
        *,
        seed: int,
    ) -> None:
        """Begin with nothing posed.

        Args:
            config: how many tasks, and which are kept.
            poser: of the tasks.
            pool: that training draws from.
            try_tasks: has the policy of the moment try them.
            seed: of the run.
        """
        self.tasks: list[Task] = []
        """Everything that was kept so far."""
        self.phases: list[Phase] = []
        self._config = config
        self._poser = poser
        self._pool = pool
        self._try = try_tasks
        self._seed = seed
        self._failed: dict[str, None] = {}
        self._solved: set[str] = set()
        self._earned: dict[str, tuple[int, float]] = {}
        """Signature -> tasks of that kind that were tried, and the sum of what they earned."""

    def observe(self, trajectories: Sequence[Trajectory]) -> None:
        """Take note of what a step sampled."""
        for trajectory in trajectories:
            if trajectory.reward["outcome"] > 0:
                self._solved.add(trajectory.task_id)
            else:
                self._failed[trajectory.task_id] = None

    def end_phase(self, step: int) -> Phase:
        """Pose tasks after the failures of the phase that ended with `step` steps, and keep some.

        Raises:
            EspalierError: they cannot be posed, or not be tried.
        """
        failed = [task_id for task_id in self._failed if task_id not in self._solved]
        self._failed, self._solved = {}, set()
        order = Order(
            num_tasks=self._config.posed_tasks,
            failed=[self._pool.task(task_id) for task_id in failed],
            known=self._pool.tasks,
            seed=f"posed:{self._seed}:{step}",
            earned={kind: total / tried for kind, (tried, total) in self._earned.items()},
        )
        posed = self._poser.pose(order)
        refused = Counter(posed.refused)
        rewards: list[float] = []
        kept = self._kept(posed.tasks, step, refused, rewards)
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
        """Those that stand the trial, with its outcome in the pool."""
        trials = self._try(tasks, step) if tasks else []
        heard = [trial for trial in trials if trial.attempts]
        if len(heard) < len(trials):
            refused["environment_lost"] += len(trials) - len(heard)
        kept: list[Task] = []
        for trial, verdict in zip(heard, judged(heard, self._config), strict=True):
            if verdict.reward is not None:
                rewards.append(verdict.reward)
                self._pay(trial.task.metadata.pattern, verdict.reward)
            if verdict.fault:
                refused[verdict.fault] += 1
                continue
            kept.append(trial.task)
            self._pool.add([trial.task])
            self._pool.observe(
                trial.task.task_id, attempts=trial.attempts, successes=trial.successes
            )
        return kept

    def _pay(self, kind: str, reward: float) -> None:
        tried, total = self._earned.get(kind, (0, 0.0))
        self._earned[kind] = (tried + 1, total + reward)

    def kept_ids(self) -> list[str]:
        """See `TaskPool.kept_ids`."""
        return self._pool.kept_ids()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the pool and of self-play, as plain data."""
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

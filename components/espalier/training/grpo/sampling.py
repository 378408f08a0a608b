"""Sampling a step's groups: draw tasks, roll out, drop groups without signal, draw again."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from espalier.config import TrainingConfig
from espalier.rollout.roller import RollsOut
from espalier.rollout.trajectory import Trajectory
from espalier.tasks import Task
from espalier.training.advantages import is_zero_variance


class DrawsTasks(Protocol):
    """What the sampler needs of the curriculum."""

    def draw(self, count: int, rng: random.Random, *, without: Iterable[str] = ()) -> list[Task]:
        """`count` tasks worth sampling now."""
        ...

    def observe(self, task_id: str, *, attempts: int, successes: int) -> None:
        """What became of a group."""
        ...


@dataclass(slots=True)
class StepRollouts:
    """All groups of a step: those that carry signal, and figures over every one sampled."""

    groups: list[list[Trajectory]]
    sampled: list[Trajectory]
    groups_sampled: int

    @property
    def zero_variance_share(self) -> float:
        """Share of the sampled groups whose rewards were all equal."""
        return 1 - len(self.groups) / self.groups_sampled


class GroupSampler:
    """Fills a step with groups that carry signal (DAPO's dynamic sampling, arXiv:2503.14476)."""

    def __init__(
        self, roller: RollsOut, tasks: DrawsTasks, config: TrainingConfig, *, seed: int
    ) -> None:
        self._roller = roller
        self._tasks = tasks
        self._config = config
        self._seed = seed

    def sample(self, step: int) -> StepRollouts:
        """Sample until the step is full, or the regenerations are used up.

        Every trajectory counts as sampled, also those of dropped groups.
        """
        config = self._config
        rng = random.Random(f"tasks:{self._seed}:{step}")
        result = StepRollouts([], [], 0)
        used: set[str] = set()
        for attempt in range(1 + config.max_regenerations):
            missing = config.tasks_per_step - len(result.groups)
            tasks = self._tasks.draw(missing, rng, without=used) if missing else []
            if not tasks:
                break
            used.update(task.task_id for task in tasks)
            trajectories = self._roller.roll_out(
                tasks,
                samples=config.group_size,
                temperature=config.temperature,
                seed=self._draw_seed(step, attempt),
            )
            self._admit(trajectories, result)
        return result

    def _admit(self, trajectories: Sequence[Trajectory], result: StepRollouts) -> None:
        size = self._config.group_size
        for start in range(0, len(trajectories), size):
            group = list(trajectories[start : start + size])
            result.sampled.extend(group)
            result.groups_sampled += 1
            successes = sum(t.reward["outcome"] > 0 for t in group)
            self._tasks.observe(group[0].task_id, attempts=size, successes=successes)
            if not is_zero_variance([t.total_reward for t in group]):
                result.groups.append(group)

    def _draw_seed(self, step: int, attempt: int) -> int:
        return random.Random(f"draw:{self._seed}:{step}:{attempt}").getrandbits(48)

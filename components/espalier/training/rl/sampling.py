"""Sampling a step's groups: draw tasks, roll out, admit what the filters keep, draw again."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from espalier.algorithms.filters import GroupFilter
from espalier.config import TrainingConfig
from espalier.rollout.roller import RollsOut
from espalier.rollout.trajectory import Trajectory
from espalier.tasks import Task
from espalier.training.rl.credit_in_groups import numbers_of
from espalier.training.rl.rows import Group

Played = dict[str, list[Trajectory]]
"""Trajectories by task id, in the order in which the tasks were drawn; groups may be ragged."""

_LEAST_PASSED = 0.25
"""Bound on the share that is expected to pass the screening: one bad draw is no reason to draw
hundreds of tasks."""


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
    """All groups of a step: those that train, and figures over every one sampled."""

    groups: list[Group] = field(default_factory=list)
    sampled: list[Trajectory] = field(default_factory=list)
    groups_sampled: int = 0
    zero_variance: int = 0
    """Sampled groups whose rewards were all equal."""
    lost: int = 0
    """Episodes that ended because their environment was lost; no reward came of them."""

    @property
    def zero_variance_share(self) -> float:
        """Share of the sampled groups whose rewards were all equal."""
        return self.zero_variance / max(1, self.groups_sampled)


class GroupSampler:
    """Fills a step with groups that the algorithm's filters admit.

    With `screening`, a task gets so many rollouts at first, and the rest of its group only where
    some of them solve it and some do not (SPEED-RL, arXiv:2506.09016): a task out of reach, or
    mastered, costs `screening` rollouts and not a whole group.
    """

    def __init__(
        self,
        roller: RollsOut,
        tasks: DrawsTasks,
        config: TrainingConfig,
        *,
        seed: int,
        screening: int = 0,
    ) -> None:
        self._roller = roller
        self._screening = screening
        self._tasks = tasks
        self._config = config
        self._seed = seed
        self._wants_baselines = "baseline_rewards_B" in config.algorithm.needs
        filters = config.algorithm.group_filters
        self._refilling = [rule for rule in filters if rule.regenerations]
        self._final = [rule for rule in filters if not rule.regenerations]
        self._regenerations = max((rule.regenerations for rule in filters), default=0)

    def sample(self, step: int, *, groups: int) -> StepRollouts:
        """Sample until there are `groups` groups, or the regenerations are used up.

        Every trajectory counts as sampled, also those of dropped groups.
        """
        rng = random.Random(f"tasks:{self._seed}:{step}")
        result = StepRollouts()
        used: set[str] = set()
        for attempt in range(1 + self._regenerations):
            missing = groups - len(result.groups)
            wanted = self._tries(missing, result) if missing > 0 else 0
            tasks = self._tasks.draw(wanted, rng, without=used) if wanted else []
            if not tasks:
                break
            used.update(task.task_id for task in tasks)
            played = self._play(tasks, missing, step, self._draw_seed(step, attempt), result)
            result.groups += self._kept(self._comparable(tasks, played, result), self._refilling)
        result.groups = self._kept(result.groups, self._final)
        return result

    def _tries(self, missing: int, result: StepRollouts) -> int:
        """How many tasks to draw, so that about `missing` of them pass the screening."""
        if not self._screening:
            return missing
        passed = len(result.groups) / result.groups_sampled if result.groups_sampled else 0.5
        return math.ceil(missing / max(passed, _LEAST_PASSED))

    def _play(
        self, tasks: Sequence[Task], missing: int, step: int, seed: int, result: StepRollouts
    ) -> Played:
        """A whole group of every task, or of the first `missing` that pass the screening."""
        size = self._config.group_size
        if not self._screening:
            return self._roll_out(tasks, size, step, seed, result)
        played = self._roll_out(tasks, self._screening, step, seed, result)
        promising = [task for task in tasks if _is_mixed(played.get(task.task_id, []))][:missing]
        rest = size - self._screening
        more = self._roll_out(promising, rest, step, seed + 1, result) if promising else {}
        for task in promising:
            played[task.task_id] += more.get(task.task_id, [])
        chosen = {task.task_id for task in promising}
        for task_id in [task_id for task_id in played if task_id not in chosen]:
            self._count(played.pop(task_id), result)
        return played

    def _roll_out(
        self, tasks: Sequence[Task], samples: int, step: int, seed: int, result: StepRollouts
    ) -> Played:
        """`samples` trajectories a task, without the episodes whose environment was lost."""
        trajectories = self._roller.roll_out(
            tasks, samples=samples, temperature=self._config.temperature_at(step), seed=seed
        )
        played: Played = {}
        for trajectory in trajectories:
            if not trajectory.is_lost:
                played.setdefault(trajectory.task_id, []).append(trajectory)
        result.lost += len(trajectories) - sum(len(group) for group in played.values())
        return played

    def _comparable(
        self, tasks: Sequence[Task], played: Played, result: StepRollouts
    ) -> list[Group]:
        """The groups that were played, each with its baseline where the algorithm reads one."""
        baselines = self._baselines([task for task in tasks if task.task_id in played])
        groups = []
        for task_id, group in played.items():
            self._count(group, result)
            baseline = baselines.get(task_id)
            # what has lost its siblings, or its baseline, has nothing left to be compared with
            is_alone = len(group) == 1 < self._config.group_size
            if not is_alone and (baseline is not None or not self._wants_baselines):
                groups.append(Group(trajectories=tuple(group), baseline_reward=baseline))
        return groups

    def _baselines(self, tasks: Sequence[Task]) -> dict[str, float]:
        """Reward of the greedy trajectory of each task, where the algorithm reads it (ReMax)."""
        if not self._wants_baselines or not tasks:
            return {}
        greedy = self._roller.roll_out(tasks, samples=1, temperature=0.0, seed=0)
        return {t.task_id: t.total_reward for t in greedy if not t.is_lost}

    def _count(self, group: Sequence[Trajectory], result: StepRollouts) -> None:
        result.sampled.extend(group)
        result.groups_sampled += 1
        successes = _successes(group)
        self._tasks.observe(group[0].task_id, attempts=len(group), successes=successes)
        rewards = [t.total_reward for t in group]
        result.zero_variance += max(rewards) == min(rewards)

    def _kept(self, groups: list[Group], filters: Sequence[GroupFilter]) -> list[Group]:
        for rule in filters:
            chosen = rule.select(numbers_of(groups, rule, self._config.algorithm))
            groups = [
                replace(groups[p], is_silenced=groups[p].is_silenced or p in chosen.silenced)
                for p in chosen.kept
            ]
        return groups

    def _draw_seed(self, step: int, attempt: int) -> int:
        return random.Random(f"draw:{self._seed}:{step}:{attempt}").getrandbits(48)


def _is_mixed(group: Sequence[Trajectory]) -> bool:
    return 0 < _successes(group) < len(group)


def _successes(group: Sequence[Trajectory]) -> int:
    return sum(t.reward["outcome"] > 0 for t in group)

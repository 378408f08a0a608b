"""Sampling a step's groups: draw tasks, roll out, admit what the filters keep, draw again."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from espalier.config import TrainingConfig
from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.rollout.roller import RollsOut
from espalier.training.rl.admission import Admission, DrawsTasks, StepRollouts, is_mixed
from espalier.training.rl.rows import Group

Played = dict[str, list[Trajectory]]
"""Trajectories by task id, in the order in which the tasks were drawn; groups may be ragged."""

LEAST_PASSED = 0.25
"""Bound on the share that is expected to pass the screening: one bad draw is no reason to draw
hundreds of tasks."""


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
        self._admission = Admission(tasks, config)

    def sample(self, step: int, *, groups: int) -> StepRollouts:
        """Sample until there are `groups` groups, or the regenerations are used up.

        Every trajectory counts as sampled, also those of dropped groups.
        """
        rng = random.Random(f"tasks:{self._seed}:{step}")
        result = StepRollouts()
        used: set[str] = set()
        for attempt in range(1 + self._admission.regenerations):
            missing = groups - len(result.groups)
            wanted = self._tries(missing, result) if missing > 0 else 0
            tasks = self._tasks.draw(wanted, rng, without=used) if wanted else []
            if not tasks:
                break
            used.update(task.task_id for task in tasks)
            played = self._play(tasks, missing, step, self._draw_seed(step, attempt), result)
            result.groups += self._admission.admitted(self._comparable(tasks, played, result))
        result.groups = self._admission.chosen(result.groups)
        return result

    def close(self) -> None:
        """Nothing: between steps nothing is sampled."""

    def _tries(self, missing: int, result: StepRollouts) -> int:
        """How many tasks to draw, so that about `missing` of them pass the screening."""
        if not self._screening:
            return missing
        passed = len(result.groups) / result.groups_sampled if result.groups_sampled else 0.5
        return math.ceil(missing / max(passed, LEAST_PASSED))

    def _play(
        self, tasks: Sequence[Task], missing: int, step: int, seed: int, result: StepRollouts
    ) -> Played:
        """A whole group of every task, or of the first `missing` that pass the screening."""
        size = self._config.group_size
        if not self._screening:
            return self._roll_out(tasks, size, step, seed, result)
        played = self._roll_out(tasks, self._screening, step, seed, result)
        promising = [task for task in tasks if is_mixed(played.get(task.task_id, []))][:missing]
        rest = size - self._screening
        more = self._roll_out(promising, rest, step, seed + 1, result) if promising else {}
        for task in promising:
            played[task.task_id] += more.get(task.task_id, [])
        chosen = {task.task_id for task in promising}
        for task_id in [task_id for task_id in played if task_id not in chosen]:
            self._admission.count(played.pop(task_id), result)
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
        groups: list[Group] = []
        for task_id, group in played.items():
            self._admission.count(group, result)
            groups += self._admission.comparable(group, baselines.get(task_id))
        return groups

    def _baselines(self, tasks: Sequence[Task]) -> dict[str, float]:
        """Reward of the greedy trajectory of each task, where the algorithm reads it (ReMax)."""
        if not self._admission.wants_baselines or not tasks:
            return {}
        greedy = self._roller.roll_out(tasks, samples=1, temperature=0.0, seed=0)
        return {t.task_id: t.total_reward for t in greedy if not t.is_lost}

    def _draw_seed(self, step: int, attempt: int) -> int:
        return random.Random(f"draw:{self._seed}:{step}:{attempt}").getrandbits(48)

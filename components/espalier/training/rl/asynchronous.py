"""Asynchronous sampling: groups are played ahead of the step that learns from them.

While one step learns, groups for `max_staleness` more are under way or waiting. They are learned
from in the order of their versions; one that took so long that it is staler than that is dropped.
"""

from __future__ import annotations

import math
import random

from espalier.config import TrainingConfig
from espalier.training.rl.admission import Admission, DrawsTasks, StepRollouts
from espalier.training.rl.lane import Order, PlayedGroup
from espalier.training.rl.rollout_worker import RolloutWorker
from espalier.training.rl.rows import Group
from espalier.training.rl.sampling import LEAST_PASSED


class AsynchronousSampler:
    """Orders groups from a worker, and hands them on as steps."""

    def __init__(
        self,
        worker: RolloutWorker,
        tasks: DrawsTasks,
        config: TrainingConfig,
        *,
        seed: int,
        screening: int = 0,
    ) -> None:
        self._worker = worker
        self._tasks = tasks
        self._config = config
        self._seed = seed
        self._admission = Admission(tasks, config)
        self._ordered: set[str] = set()
        """Tasks under way or waiting; none is played twice at a time."""
        self._waiting: list[PlayedGroup] = []
        self._orders = 0
        self._least_passed = LEAST_PASSED if screening else 1.0
        self._first_guess = 0.5 if screening or self._admission.regenerations else 1.0
        self._taken, self._admitted = 0, 0

    def sample(self, step: int, *, groups: int) -> StepRollouts:
        """See `SamplesGroups`; waits for groups where not enough are there already."""
        result = StepRollouts()
        budget = groups * (1 + self._admission.regenerations) / self._least_passed
        self._order_ahead(step, groups, missing=groups)
        while len(result.groups) < groups and result.groups_sampled < budget and self._ordered:
            played = self._next()
            self._ordered.discard(played.task_id)
            if step - played.version > self._config.asynchronous.max_staleness:
                result.too_stale += 1
            else:
                result.groups += self._let_in(played, result)
            self._order_ahead(step, groups, missing=groups - len(result.groups))
        result.groups = self._admission.chosen(result.groups)
        return result

    def close(self) -> None:
        """See `SamplesGroups`."""
        self._worker.close()

    def _next(self) -> PlayedGroup:
        """The waiting group of the oldest version."""
        while (over := self._worker.take(wait=not self._waiting)) is not None:
            self._waiting.append(over)
        oldest = min(range(len(self._waiting)), key=lambda n: self._waiting[n].version)
        return self._waiting.pop(oldest)

    def _let_in(self, played: PlayedGroup, result: StepRollouts) -> list[Group]:
        judged = [t for t in played.trajectories if not t.is_lost]
        result.lost += len(played.trajectories) - len(judged)
        self._taken += 1
        if not judged:
            return []
        self._admission.count(judged, result)
        if not played.passed_screening:
            return []
        admitted = self._admission.admitted(self._admission.comparable(judged, played.baseline))
        self._admitted += len(admitted)
        return admitted

    def _order_ahead(self, step: int, groups: int, *, missing: int) -> None:
        """Keep as many groups under way as this step misses and the bound allows for later ones.

        What is ordered now is learned from by `max_staleness` steps after the version that it is
        played under, if about as many are let in as were so far. A quarter of that time is kept in
        reserve: what comes later than expected would be dropped.
        """
        let_in = self._admitted / self._taken if self._taken else self._first_guess
        age = step - (step if self._worker.version is None else self._worker.version)
        later = max(0, self._config.asynchronous.max_staleness - age)
        ahead = (later - later // 4) * groups + missing
        more = math.ceil(ahead / max(let_in, LEAST_PASSED)) - len(self._ordered)
        if more <= 0:
            return
        rng = random.Random(f"tasks:{self._seed}:{step}:{self._orders}")
        temperature = self._config.temperature_at(step)
        for task in self._tasks.draw(more, rng, without=self._ordered):
            self._ordered.add(task.task_id)
            name = f"draw:{self._seed}:{step}:{self._orders}"
            self._worker.order(Order(task, name, temperature))
            self._orders += 1

"""Orders groups ahead of the learner, at a pace at which none gets too old.

While one step learns, groups for up to `max_staleness` more steps are in flight or waiting. They
are used in the order of their versions. No more are ordered than the steps within that bound can
use, and a step waits for groups that would be too old for later steps.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from espalier.config import TrainingConfig
from espalier.curriculum.pool import TaskPool
from espalier.records import Task
from espalier.training.rl.asynchronous import GroupOrder, GroupWorker, SampledGroup
from espalier.training.rl.ledger import OpenDraw, Outcome
from espalier.training.rl.reward_functions import RewardFunction, no_further_reward
from espalier.training.rl.rows import Group
from espalier.training.rl.sampling import (
    MIN_EXPECTED_PASS_SHARE,
    GroupAdmission,
    StepRollouts,
)


class _Ordered(NamedTuple):
    task_id: str
    version: int


class AsynchronousSampler:
    """Orders groups from a worker ahead of time, and assembles them into steps."""

    def __init__(
        self,
        worker: GroupWorker[Any],
        tasks: TaskPool,
        config: TrainingConfig,
        *,
        seed: int,
        screening: int = 0,
        reward_function: RewardFunction = no_further_reward,
    ) -> None:
        self._worker = worker
        self._tasks = tasks
        self._config = config
        self._seed = seed
        self._screening = screening
        self._admission = GroupAdmission(tasks, config, reward_function)
        self.ledger, self.left_out = self._admission.ledger, self._admission.left_out
        self._ordered: dict[int, _Ordered] = {}
        """Draws in flight or waiting; meanwhile none of their tasks is drawn again."""
        self._waiting: list[SampledGroup] = []
        self._left: deque[OpenDraw] | None = None
        """Draws that a killed run left open, to be sampled first; None before the first step."""
        self._per_step = config.tasks_per_step - config.replay.groups_of(config.tasks_per_step)
        """Least number of groups that every step takes."""
        self._least_passed = MIN_EXPECTED_PASS_SHARE if screening else 1.0
        self._first_guess = 0.5 if screening or self._admission.regenerations else 1.0
        self._taken, self._admitted = 0, 0

    def sample(self, step: int, *, groups: int) -> StepRollouts:
        """Return a step's groups; block until there are enough and none gets too old."""
        if self._left is None:
            self._left = self._left_open()
        result = StepRollouts()
        budget = math.ceil(groups * (1 + self._admission.regenerations) / self._least_passed)
        missing = groups
        self._order_ahead(step, groups, missing=missing)
        while self._ordered and (missing > 0 or not self._is_in_time(step, spare=0)):
            sampled = self._next(step, groups - len(result.groups))
            del self._ordered[sampled.draw]
            result.groups += self._admit(sampled, result)
            budget -= 1
            # without budget the step ends with fewer groups, once none gets too old by that
            missing = min(budget, groups - len(result.groups))
            self._order_ahead(step, groups, missing=missing)
        result.groups = self._admission.apply_final_filters(result.groups)
        return result

    def _left_open(self) -> deque[OpenDraw]:
        known = {task.task_id for task in self._tasks.tasks}
        left = self.ledger.open_draws
        gone = [draw.number for draw in left if draw.task_id not in known]
        self.ledger.settle(gone, Outcome.TASK_GONE)
        return deque(draw for draw in left if draw.task_id in known)

    def close(self) -> None:
        """Stop sampling ahead; `sample` must not be called any more."""
        self._worker.close()

    def _next(self, step: int, missing: int) -> SampledGroup:
        """Wait for the finished group of the oldest version that no unfinished one precedes."""
        while True:
            while (finished := self._worker.take(wait=False)) is not None:
                self._close(finished)
            may_be_taken = [
                number
                for number, group in enumerate(self._waiting)
                if self._is_in_time(step, spare=missing - 1, before=group.version)
            ]
            if may_be_taken:
                oldest = min(may_be_taken, key=lambda n: self._waiting[n].version)
                return self._waiting.pop(oldest)
            finished = self._worker.take(wait=True)
            assert finished is not None, "a worker that is waited for gives a group"
            self._close(finished)

    def _close(self, group: SampledGroup) -> None:
        self.ledger.close(group.draw)
        self._waiting.append(group)

    def _is_in_time(self, step: int, *, spare: int, before: int | None = None) -> bool:
        """Return whether no ordered group gets too old.

        Args:
            step: the current one.
            spare: number of groups that it can still learn from.
            before: only groups of versions older than this one count.
        """
        bound = self._config.asynchronous.max_staleness
        versions = sorted(
            order.version
            for order in self._ordered.values()
            if before is None or order.version < before
        )
        # the n oldest have to be among those that this step and the later ones within their bound
        # learn from
        return all(
            count <= spare + (version + bound - step) * self._per_step
            for count, version in enumerate(versions, start=1)
        )

    def _admit(self, group: SampledGroup, result: StepRollouts) -> list[Group]:
        kept = [t for t in group.trajectories if not t.is_lost]
        result.lost += len(group.trajectories) - len(kept)
        self._taken += 1
        if not kept:
            self.ledger.settle([group.draw], Outcome.LOST)
            return []
        counted = self._admission.count(kept, result)
        if not group.passed_screening:
            self.ledger.settle([group.draw], Outcome.SCREENED)
            return []
        admitted = self._admission.apply_refill_filters(
            self._admission.comparable_group(counted, group.greedy, draw=group.draw)
        )
        self._admitted += len(admitted)
        return admitted

    def _order_ahead(self, step: int, groups: int, *, missing: int) -> None:
        """Keep in flight what this step still misses, and what later steps can use.

        A group ordered now may be learned from up to `max_staleness` versions later. The number of
        orders follows from the share of groups admitted so far. A quarter of a long bound is left
        unused, so that steps seldom wait for the last group of a version. There are never more
        orders than could be learned from if all were admitted.
        """
        version = step if self._worker.version is None else self._worker.version
        bound = self._config.asynchronous.max_staleness
        later = max(0, min(version + bound, self._config.steps - 1) - step)
        admitted_share = self._admitted / self._taken if self._taken else self._first_guess
        ahead = (later - later // 4) * groups + missing
        wanted = math.ceil(ahead / max(admitted_share, MIN_EXPECTED_PASS_SHARE))
        most = missing + later * self._per_step
        more = min(wanted, most) - len(self._ordered)
        for draw, task in self._drawn(more):
            self._ordered[draw] = _Ordered(task.task_id, version)
            size = self._config.group_size
            order = GroupOrder(
                draw,
                task,
                names=tuple(f"draw:{self._seed}:{draw}:{number}" for number in range(size)),
                temperature=self._config.temperature_at(step),
                screening=self._screening,
                wants_baseline=self._admission.wants_baselines,
            )
            self._worker.order(order)

    def _drawn(self, count: int) -> Iterator[tuple[int, Task]]:
        """Yield the next `count` draws: first those that a killed run left open, then new ones."""
        assert self._left is not None, "a step has begun"
        for _ in range(count):
            if self._left:
                former = self._left.popleft()
                yield former.number, self._tasks.task(former.task_id)
                continue
            # seeded by the number alone: a draw does not depend on what is ordered with it
            rng = random.Random(f"task:{self._seed}:{self.ledger.num_draws}")
            under_way = [order.task_id for order in self._ordered.values()]
            for task in self._tasks.draw(1, rng, without=under_way):
                [number] = self.ledger.draw([task.task_id])
                yield number, task

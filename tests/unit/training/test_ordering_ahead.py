"""How many groups are under way beside the learner, where steps are as small as they can be."""

from __future__ import annotations

from collections import deque

import pytest

from espalier.config import CurriculumConfig, TrainingConfig
from espalier.curriculum.pool import TaskPool
from espalier.training.rl.asynchronous import SampledGroup
from espalier.training.rl.pacing import AsynchronousSampler
from tests.factories.training import make_task, make_trajectory


class PlaysAtOnce:
    """Every order is over when somebody waits for it."""

    version = 0

    def __init__(self):
        self.under_way = deque()

    def order(self, order):
        self.under_way.append((order, self.version))

    def take(self, *, wait):
        if not wait:
            return None
        order, version = self.under_way.popleft()
        played = [make_trajectory(order.task, reward) for reward in (0, 1)]
        return SampledGroup(order.draw, version, played, None, passed_screening=True)


@pytest.mark.parametrize(
    ("max_staleness", "groups", "under_way"),
    [(1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 1, 3), (8, 1, 6), (1, 2, 2)],
)
def test_one_group_that_is_missing_is_ordered(max_staleness, groups, under_way):
    config = TrainingConfig.model_validate(
        {
            "tasks_per_step": groups,
            "group_size": 2,
            "minibatches": 1,
            "algorithm": {"filters": []},
            "asynchronous": {"max_staleness": max_staleness},
        }
    )
    pool = TaskPool([make_task(f"name{n}") for n in range(40)], CurriculumConfig())
    worker = PlaysAtOnce()
    sampler = AsynchronousSampler(worker, pool, config, seed=0)
    for step in range(4):
        worker.version = step
        assert len(sampler.sample(step, groups=groups).groups) == groups
        assert len(worker.under_way) == under_way

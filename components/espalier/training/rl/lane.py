"""A lane: one copy of the policy and the engine that samples from it.

Asynchronous rollouts open a new lane with each published version. Groups that have begun end on the
lane that they began on, under one version, while new ones begin on the next: nobody waits for a
slow tool before weights may change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.rollout.episode import EpisodeContext
from espalier.rollout.roller import Roller
from espalier.training.rl.admission import is_mixed


class Order(NamedTuple):
    """A group to be played."""

    task: Task
    name: str
    """What the draws are a function of, beside the weights."""
    temperature: float


class PlayedGroup(NamedTuple):
    """What became of an order."""

    task_id: str
    version: int
    trajectories: list[Trajectory]
    """Those whose environment was lost among them; few where the screening ended it."""
    baseline: float | None
    passed_screening: bool


class Plan(NamedTuple):
    """How every group is played."""

    group_size: int
    screening: int
    """Rollouts before the rest of a group, see `GroupSampler`; 0 plays it at once."""
    wants_baseline: bool


class Lane:
    """Plays groups under one version of the weights at a time."""

    def __init__(self, roller: Roller, model: PreTrainedModel, plan: Plan) -> None:
        self.roller = roller
        self.playing = 0
        """Groups that have begun and not ended."""
        self._model = model
        self._plan = plan
        self._context: EpisodeContext | None = None
        self._exits = AsyncExitStack()
        self._changing = asyncio.Lock()

    async def open(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Take groups from now on, played under these weights."""
        async with self._changing:
            self._model.load_state_dict(weights)
            self.roller.policy_version = version
            self._context = await self._exits.enter_async_context(self.roller.serving())

    async def close(self) -> None:
        """Take no more; the lane may be opened again."""
        async with self._changing:
            self._context = None
            await self._exits.aclose()

    async def play(self, order: Order) -> PlayedGroup:
        """Play the group that was ordered."""
        plan, version = self._plan, self.roller.policy_version
        first = plan.screening or plan.group_size
        played = await self._episodes(order, range(first))
        passed = not plan.screening or is_mixed([t for t in played if not t.is_lost])
        if passed:
            played += await self._episodes(order, range(first, plan.group_size))
        baseline = None
        if passed and plan.wants_baseline:
            [greedy] = await self._episodes(order._replace(temperature=0.0), range(1))
            baseline = None if greedy.is_lost else greedy.total_reward
        return PlayedGroup(order.task.task_id, version, played, baseline, passed)

    async def _episodes(self, order: Order, numbers: range) -> list[Trajectory]:
        assert self._context is not None, "groups are played on an open lane"
        return await asyncio.gather(
            *(
                self.roller.play_one(
                    order.task,
                    self._context,
                    temperature=order.temperature,
                    name=f"{order.name}:{number}",
                )
                for number in numbers
            )
        )

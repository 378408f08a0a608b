"""Asynchronous sampling: a thread rolls out groups ahead of the step that learns from them.

    AsynchronousSampler -> RolloutWorker (a thread) -> PolicyReplica (weights and an engine)

While one step learns, groups for `max_staleness` more are in flight or waiting. They are learned
from in the order of their versions; a group that took longer than `max_staleness` is dropped.
"""

from __future__ import annotations

import asyncio
import math
import queue
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from espalier.config import TrainingConfig
from espalier.curriculum.pool import TaskPool
from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.rollout.episode import EpisodeContext
from espalier.rollout.roller import Roller
from espalier.training.rl.payment import Pay, pay_nothing
from espalier.training.rl.rows import Group
from espalier.training.rl.sampling import (
    MIN_EXPECTED_PASS_SHARE,
    GroupAdmission,
    StepRollouts,
    is_mixed,
)


class GroupOrder(NamedTuple):
    """A group to be sampled."""

    task: Task
    name: str
    """Seeds the draws of the group's episodes."""
    temperature: float


class SampledGroup(NamedTuple):
    """The outcome of an order."""

    task_id: str
    version: int
    trajectories: list[Trajectory]
    """Lost episodes included; only the first few where the group did not pass the screening."""
    greedy: Trajectory | None
    """The baseline, where the plan wants one and it was not lost."""
    passed_screening: bool


class GroupPlan(NamedTuple):
    """How every group is sampled."""

    group_size: int
    screening: int
    """Rollouts before the rest of a group, see `GroupSampler`; 0 samples the group at once."""
    wants_baseline: bool


class PolicyReplica:
    """One copy of the policy, and the roller that samples groups from it.

    A group is sampled under one version of the weights: it ends on the replica that it began on,
    while newer groups begin on a replica with newer weights. So weights may change without waiting
    for a slow tool.
    """

    def __init__(self, roller: Roller, model: PreTrainedModel, plan: GroupPlan) -> None:
        self.roller = roller
        self.in_flight = 0
        """Groups that have begun and not ended."""
        self._model = model
        self._plan = plan
        self._context: EpisodeContext | None = None
        self._exits = AsyncExitStack()
        self._changing = asyncio.Lock()

    async def open(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Load `weights` and accept groups."""
        async with self._changing:
            self._model.load_state_dict(weights)
            self.roller.policy_version = version
            self._context = await self._exits.enter_async_context(self.roller.serving())

    async def close(self) -> None:
        """Accept no more groups; the replica may be opened again."""
        async with self._changing:
            self._context = None
            await self._exits.aclose()

    async def sample(self, order: GroupOrder) -> SampledGroup:
        """Sample the ordered group, and the greedy baseline where the plan wants one."""
        plan, version = self._plan, self.roller.policy_version
        first = plan.screening or plan.group_size
        sampled = await self._episodes(order, range(first))
        passed = not plan.screening or is_mixed([t for t in sampled if not t.is_lost])
        if passed:
            sampled += await self._episodes(order, range(first, plan.group_size))
        baseline = None
        if passed and plan.wants_baseline:
            [greedy] = await self._episodes(order._replace(temperature=0.0), range(1))
            baseline = None if greedy.is_lost else greedy
        return SampledGroup(order.task.task_id, version, sampled, baseline, passed)

    async def _episodes(self, order: GroupOrder, numbers: range) -> list[Trajectory]:
        assert self._context is not None, "groups are sampled on an open replica"
        return await asyncio.gather(
            *(
                self.roller.roll_out_one(
                    order.task,
                    self._context,
                    temperature=order.temperature,
                    name=f"{order.name}:{number}",
                )
                for number in numbers
            )
        )


class _Weights(NamedTuple):
    version: int
    tensors: Mapping[str, Tensor]


class RolloutWorker:
    """A thread that samples ordered groups, each under the newest weights when it begins.

    A thread and not a process: matrix products release the interpreter, and measured side by side
    the two overlap equally well. A process would need a second search index, a second start, and
    pickled trajectories.
    """

    def __init__(self, make_replica: Callable[[], PolicyReplica], *, threads: int) -> None:
        """Set up a worker; nothing runs before `start`.

        Args:
            make_replica: makes a further replica, when all others are busy under older weights.
            threads: CPU threads of its matrix products, and of the learner's while it runs.
        """
        self._make_replica = make_replica
        self._threads = self._former_threads = threads
        self.version: int | None = None
        """Version under which groups ordered now begin; None before the first `publish`."""
        self._replicas: list[PolicyReplica] = []
        self._current: PolicyReplica | None = None
        self._sampling: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._inbox: asyncio.Queue[_Weights | GroupOrder | None] = asyncio.Queue()
        self._finished: queue.SimpleQueue[SampledGroup | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="espalier-rollouts", daemon=True)

    @property
    def num_replicas(self) -> int:
        """Copies of the policy made so far."""
        return len(self._replicas)

    def start(self) -> None:
        """Start the thread; it samples after the first `publish`."""
        self._former_threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        self._thread.start()

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Sample groups that begin from now on under `weights`, which must not change any more."""
        self.version = version
        self._send(_Weights(version, weights))

    def order(self, order: GroupOrder) -> None:
        """Sample a group; `take` returns it when it is done."""
        self._send(order)

    def take(self, *, wait: bool) -> SampledGroup | None:
        """Return a finished group; None if there is none and `wait` is false.

        Raises:
            BaseException: the worker's failure, raised in the caller's thread.
        """
        try:
            found = self._finished.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """Cancel the groups in flight, and end the thread."""
        self._send(None)
        self._thread.join()
        torch.set_num_threads(self._former_threads)

    def _send(self, message: _Weights | GroupOrder | None) -> None:
        # a closed loop means that the worker has failed; `take` raises its error
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, message)

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        main = self._loop.create_task(self._serve())
        main.add_done_callback(self._report_failure)
        try:
            self._loop.run_until_complete(asyncio.wait([main]))
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        try:
            while (message := await self._inbox.get()) is not None:
                if isinstance(message, _Weights):
                    await self._switch(message)
                else:
                    assert self._current is not None, "weights are published before groups"
                    self._begin(self._current, message)
        finally:
            for task in self._sampling:
                task.cancel()
            await asyncio.gather(*self._sampling, return_exceptions=True)
            for replica in self._replicas:
                await replica.close()

    async def _switch(self, weights: _Weights) -> None:
        former, self._current = self._current, None
        if former is not None and not former.in_flight:
            await former.close()
        free = [replica for replica in self._replicas if not replica.in_flight]
        if not free:
            free.append(self._make_replica())
            self._replicas.append(free[0])
        await free[0].open(weights.version, weights.tensors)
        self._current = free[0]

    def _begin(self, replica: PolicyReplica, order: GroupOrder) -> None:
        replica.in_flight += 1
        task = self._loop.create_task(self._sample(replica, order))
        self._sampling.add(task)
        task.add_done_callback(self._sampling.discard)
        task.add_done_callback(self._report_failure)

    async def _sample(self, replica: PolicyReplica, order: GroupOrder) -> None:
        self._finished.put(await replica.sample(order))
        replica.in_flight -= 1
        if not replica.in_flight and replica is not self._current:
            await replica.close()

    def _report_failure(self, task: asyncio.Task[None]) -> None:
        """Hand a failure to the learner, which would otherwise wait forever."""
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._finished.put(failure)


class AsynchronousSampler:
    """Orders groups from a worker ahead of time, and assembles them into steps."""

    def __init__(
        self,
        worker: RolloutWorker,
        tasks: TaskPool,
        config: TrainingConfig,
        *,
        seed: int,
        screening: int = 0,
        pay: Pay = pay_nothing,
    ) -> None:
        self._worker = worker
        self._tasks = tasks
        self._config = config
        self._seed = seed
        self._admission = GroupAdmission(tasks, config, pay)
        self._ordered: set[str] = set()
        """Tasks in flight or waiting; none of them is drawn again meanwhile."""
        self._waiting: list[SampledGroup] = []
        self._orders = 0
        self._least_passed = MIN_EXPECTED_PASS_SHARE if screening else 1.0
        self._first_guess = 0.5 if screening or self._admission.regenerations else 1.0
        self._taken, self._admitted = 0, 0

    def sample(self, step: int, *, groups: int) -> StepRollouts:
        """See `StepSampler`; blocks until enough groups are finished."""
        result = StepRollouts()
        budget = groups * (1 + self._admission.regenerations) / self._least_passed
        self._order_ahead(step, groups, missing=groups)
        while len(result.groups) < groups and result.groups_sampled < budget and self._ordered:
            sampled = self._next()
            self._ordered.discard(sampled.task_id)
            if step - sampled.version > self._config.asynchronous.max_staleness:
                result.too_stale += 1
            else:
                result.groups += self._admit(sampled, result)
            self._order_ahead(step, groups, missing=groups - len(result.groups))
        result.groups = self._admission.apply_final_filters(result.groups)
        return result

    def close(self) -> None:
        """See `StepSampler`."""
        self._worker.close()

    def _next(self) -> SampledGroup:
        """The finished group of the oldest version; waits if none is finished."""
        while (finished := self._worker.take(wait=not self._waiting)) is not None:
            self._waiting.append(finished)
        oldest = min(range(len(self._waiting)), key=lambda n: self._waiting[n].version)
        return self._waiting.pop(oldest)

    def _admit(self, group: SampledGroup, result: StepRollouts) -> list[Group]:
        kept = [t for t in group.trajectories if not t.is_lost]
        result.lost += len(group.trajectories) - len(kept)
        self._taken += 1
        if not kept:
            return []
        paid = self._admission.count(kept, result)
        if not group.passed_screening:
            return []
        admitted = self._admission.apply_refill_filters(
            self._admission.comparable_group(paid, group.greedy)
        )
        self._admitted += len(admitted)
        return admitted

    def _order_ahead(self, step: int, groups: int, *, missing: int) -> None:
        """Keep in flight what this step still misses, and what later steps can use.

        A group ordered now may be learned from up to `max_staleness` versions later; the share of
        groups admitted so far says how many to order. A quarter of the bound is kept in reserve,
        since a group that is later than expected would be dropped.
        """
        admitted_share = self._admitted / self._taken if self._taken else self._first_guess
        age = step - (step if self._worker.version is None else self._worker.version)
        later = max(0, self._config.asynchronous.max_staleness - age)
        ahead = (later - later // 4) * groups + missing
        more = math.ceil(ahead / max(admitted_share, MIN_EXPECTED_PASS_SHARE)) - len(self._ordered)
        if more <= 0:
            return
        rng = random.Random(f"tasks:{self._seed}:{step}:{self._orders}")
        temperature = self._config.temperature_at(step)
        for task in self._tasks.draw(more, rng, without=self._ordered):
            self._ordered.add(task.task_id)
            name = f"draw:{self._seed}:{step}:{self._orders}"
            self._worker.order(GroupOrder(task, name, temperature))
            self._orders += 1

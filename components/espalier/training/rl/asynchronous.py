"""Asynchronous sampling: a thread rolls out groups ahead of the step that learns from them.

AsynchronousSampler (pacing) -> RolloutWorker (a thread) -> PolicyReplica (weights, an engine)
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from espalier.records import HungError, Task
from espalier.records.trajectory import Trajectory
from espalier.rollout.episode import EpisodeContext
from espalier.rollout.roller import Roller
from espalier.rollout.waits import EpisodeWaits, hang_message
from espalier.training.rl.sampling import is_mixed

_HUNG_THREAD_ENDS_WITHIN_S = 5.0


class GroupOrder(NamedTuple):
    """An order to sample one group."""

    draw: int
    """The number of its draw in the prompt ledger."""
    task: Task
    name: str
    """Seeds the draws of the group's episodes."""
    temperature: float


class SampledGroup(NamedTuple):
    """The result of an order."""

    draw: int
    version: int
    trajectories: list[Trajectory]
    """Includes lost episodes; only the first few if the group did not pass the screening."""
    greedy: Trajectory | None
    """The baseline; None if the plan has none, or it was lost."""
    passed_screening: bool


class GroupPlan(NamedTuple):
    """How every group is sampled."""

    group_size: int
    screening: int
    """Number of rollouts before the rest of a group (`GroupSampler`); 0 samples the whole group at
    once."""
    wants_baseline: bool


class PolicyReplica:
    """One copy of the policy, and the roller that samples groups from it.

    A group is sampled under one version of the weights: it ends on the replica where it began,
    while newer groups begin on a replica with newer weights. So weights may change without waiting
    for a slow tool.
    """

    def __init__(self, roller: Roller, model: PreTrainedModel, plan: GroupPlan) -> None:
        self.roller = roller
        self.in_flight = 0
        """Number of groups that have begun and not ended."""
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
        return SampledGroup(order.draw, version, sampled, baseline, passed)

    async def _episodes(self, order: GroupOrder, numbers: range) -> list[Trajectory]:
        assert self._context is not None, "groups are sampled on an open replica"
        return await self.roller.roll_out_group(
            order.task,
            self._context,
            temperature=order.temperature,
            names=[f"{order.name}:{number}" for number in numbers],
        )


class _Weights(NamedTuple):
    version: int
    tensors: Mapping[str, Tensor]


class RolloutWorker:
    """A thread that samples ordered groups, each under the newest weights when it begins.

    It is a thread and not a process: matrix products release the interpreter lock, and both were
    measured to overlap equally well. A process would need a second search index, a second start,
    and pickled trajectories.
    """

    def __init__(
        self,
        make_replica: Callable[[], PolicyReplica],
        *,
        threads: int,
        limit_s: float = math.inf,
        waits: Callable[[], Sequence[EpisodeWaits]] = list,
    ) -> None:
        """Set up a worker; nothing runs before `start`.

        Args:
            make_replica: makes a further replica, when all others are busy under older weights.
            threads: CPU threads of its matrix products, and of the learner's while it runs.
            limit_s: longest time without progress of any episode, while a group is awaited.
            waits: the waits of the replicas' rollers.
        """
        self._make_replica = make_replica
        self._threads = self._former_threads = threads
        self._limit_s = limit_s
        self._waits = waits
        self._loads: int | None = None
        """Version of the weights that a replica is loading."""
        self._is_hung = False
        self.version: int | None = None
        """Version of the weights for groups that begin now; None before the first `publish`."""
        self._replicas: list[PolicyReplica] = []
        self._current: PolicyReplica | None = None
        self._sampling: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._inbox: asyncio.Queue[_Weights | GroupOrder | None] = asyncio.Queue()
        self._finished: queue.SimpleQueue[SampledGroup | BaseException] = queue.SimpleQueue()
        self._serving: asyncio.Task[None]
        self._thread = threading.Thread(target=self._run, name="espalier-rollouts", daemon=True)

    @property
    def num_replicas(self) -> int:
        """Number of copies of the policy made so far."""
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
            HungError: no episode made progress within the limit.
        """
        try:
            found = self._finished.get(block=False) if not wait else self._waited_for()
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """Cancel the groups in flight, and end the thread; a thread that hangs is abandoned."""
        self._send(None)
        left_s = self._limit_s
        if self._is_hung:
            left_s = _HUNG_THREAD_ENDS_WITHIN_S
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(None if left_s == math.inf else left_s)
        torch.set_num_threads(self._former_threads)

    def _waited_for(self) -> SampledGroup | BaseException:
        began_s = time.monotonic()
        while True:
            silent_s = [waits.silent_s for waits in self._waits()]
            left_s = self._limit_s - min(time.monotonic() - began_s, *silent_s, math.inf)
            if left_s <= 0:
                self._is_hung = True
                raise HungError(self._hang_message())
            with suppress(queue.Empty):
                return self._finished.get(timeout=None if left_s == math.inf else left_s)

    def _hang_message(self) -> str:
        loading = [] if self._loads is None else [f"loading of weights, version {self._loads}"]
        waits = [wait for roller in self._waits() for wait in roller.open]
        return hang_message(self._limit_s, waits, also=loading)

    def _send(self, message: _Weights | GroupOrder | None) -> None:
        # a closed loop means that the worker has failed; `take` raises its error
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, message)

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        self._serving = self._loop.create_task(self._serve())
        self._serving.add_done_callback(self._report_failure)
        try:
            self._loop.run_until_complete(asyncio.wait([self._serving]))
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
        self._loads = weights.version
        await free[0].open(weights.version, weights.tensors)
        self._loads = None
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
        """Pass a failure on to the learner, which would otherwise wait forever."""
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._finished.put(failure)

"""Sampling by a worker: a thread rolls out the groups that are ordered from it.

AsynchronousSampler (pacing) -> RolloutWorker (a thread) -> PolicyReplica (weights, an engine)

`ray_rollouts` has such workers on other nodes. In one process each replica is a copy of the policy,
and a group ends on the replica where it began. Servers are one replica for all groups: they
exchange weights while groups are under way.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from espalier.records import HungError, Task
from espalier.records.trajectory import Trajectory
from espalier.rollout.episode import EpisodeContext
from espalier.rollout.roller import Roller
from espalier.rollout.waits import EpisodeWaits, hang_message
from espalier.training.parallel import load_whole_weights
from espalier.training.rl.sampling import is_mixed

T = TypeVar("T")
W = TypeVar("W")
"""What a replica loads: weights in memory, or a directory that servers read."""
W_contra = TypeVar("W_contra", contravariant=True)

_HUNG_THREAD_ENDS_WITHIN_S = 5.0
_LOOKS_EVERY_S = 1.0
"""How often a thread that awaits the worker's result looks whether the worker still runs."""


class GroupOrder(NamedTuple):
    """An order to sample one group."""

    draw: int
    """The number of its draw in the prompt ledger, or of its task in a rollout that is waited for;
    no other order in flight has it."""
    task: Task
    names: tuple[str, ...]
    """One for each episode of the group; seeds the episode's draws."""
    temperature: float
    screening: int = 0
    """Number of rollouts before the rest of a group (`GroupSampler`); 0 samples the whole group at
    once."""
    wants_baseline: bool = False
    """Whether a greedy rollout of the task is wanted too."""


class SampledGroup(NamedTuple):
    """The result of an order."""

    draw: int
    version: int
    """Version under which it began; the oldest of its tokens."""
    trajectories: list[Trajectory]
    """Includes lost episodes; only the first few if the group did not pass the screening."""
    greedy: Trajectory | None
    """The baseline; None if the order wants none, or it was lost."""
    passed_screening: bool


class GroupWorker(Protocol[W_contra]):
    """Samples ordered groups: a thread of this process, or processes on other nodes."""

    version: int | None
    """Version of the weights for groups that begin now; None before the first `publish`."""

    def start(self) -> None:
        """Start the worker; it samples after the first `publish`."""
        ...

    def publish(self, version: int, weights: W_contra, /) -> None:
        """Sample groups that begin from now on under `weights`, which must not change any more."""
        ...

    def order(self, order: GroupOrder, /) -> None:
        """Sample a group; `take` returns it when it is done."""
        ...

    def take(self, *, wait: bool) -> SampledGroup | None:
        """Return a finished group; None if there is none and `wait` is false."""
        ...

    def close(self) -> None:
        """End the groups in flight, and the worker."""
        ...


class OrderingRoller:
    """Rolls out by a worker: each task is an order, and all are waited for.

    Episodes have the names that `Roller.roll_out` gives them. So the draws are those of one
    engine, whichever worker samples a group.
    """

    def __init__(self, worker: GroupWorker[Any]) -> None:
        """Order from `worker`, which nobody else orders from."""
        self.seconds = 0.0
        """Duration of the rollouts."""
        self._worker = worker

    def roll_out(
        self, tasks: Sequence[Task], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """Sample `samples` trajectories of every task, as `Roller.roll_out` does."""
        started = time.perf_counter()
        for number, task in enumerate(tasks):
            first = number * samples
            names = tuple(f"{seed}:{episode}" for episode in range(first, first + samples))
            self._worker.order(GroupOrder(number, task, names, temperature))
        groups: dict[int, Sequence[Trajectory]] = {}
        while len(groups) < len(tasks):
            group = self._worker.take(wait=True)
            assert group is not None, "a worker that is waited for gives a group"
            assert group.draw not in groups, "each order is answered once"
            groups[group.draw] = group.trajectories
        self.seconds += time.perf_counter() - started
        return [trajectory for number in range(len(tasks)) for trajectory in groups[number]]


class Replica(ABC, Generic[W]):
    """A roller that samples groups, with the weights that it uses."""

    takes_weights_in_flight = False
    """Whether `open` may be called while groups are in flight."""

    def __init__(self, roller: Roller) -> None:
        self.roller = roller
        self.in_flight = 0
        """Number of groups that have begun and not ended."""
        self._context: EpisodeContext | None = None
        self._exits = AsyncExitStack()
        self._changing = asyncio.Lock()

    @abstractmethod
    async def _load(self, version: int, weights: W) -> None: ...

    async def open(self, version: int, weights: W) -> None:
        """Load `weights` and accept groups."""
        async with self._changing:
            await self._load(version, weights)
            if self._context is None:
                self._context = await self._exits.enter_async_context(self.roller.serving())

    async def close(self) -> None:
        """Accept no more groups; the replica may be opened again."""
        async with self._changing:
            self._context = None
            await self._exits.aclose()

    async def sample(self, order: GroupOrder) -> SampledGroup:
        """Sample the ordered group, and the greedy baseline where the order wants one."""
        version = self.roller.policy_version
        first = order.screening or len(order.names)
        sampled = await self._episodes(order, order.names[:first])
        passed = not order.screening or is_mixed([t for t in sampled if not t.is_lost])
        if passed:
            sampled += await self._episodes(order, order.names[first:])
        baseline = None
        if passed and order.wants_baseline:
            [greedy] = await self._episodes(order._replace(temperature=0.0), order.names[:1])
            baseline = None if greedy.is_lost else greedy
        return SampledGroup(order.draw, version, sampled, baseline, passed)

    async def _episodes(self, order: GroupOrder, names: Sequence[str]) -> list[Trajectory]:
        assert self._context is not None, "groups are sampled on an open replica"
        return await self.roller.roll_out_group(
            order.task, self._context, temperature=order.temperature, names=names
        )


class PolicyReplica(Replica[Mapping[str, Tensor]]):
    """One copy of the policy in this process.

    A group is sampled under one version of the weights: it ends on the replica where it began,
    while newer groups begin on a replica with newer weights. So weights may change without waiting
    for a slow tool.
    """

    def __init__(self, roller: Roller, model: PreTrainedModel) -> None:
        super().__init__(roller)
        self._model = model

    async def _load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        load_whole_weights(self._model, weights)
        self.roller.policy_version = version


class ServerReplica(Replica[Path]):
    """The policy on servers.

    They exchange weights while groups are in flight: an episode's later tokens may be of newer
    weights, and each has its version (`Trajectory.token_versions`).
    """

    takes_weights_in_flight = True

    def __init__(self, roller: Roller, exchange: Callable[[Path, int], Awaitable[None]]) -> None:
        """Set the roller over the servers, and what gives them a directory's weights."""
        super().__init__(roller)
        self._exchange = exchange

    async def _load(self, version: int, weights: Path) -> None:
        await self._exchange(weights, version)


class _Weights(NamedTuple, Generic[W]):
    version: int
    content: W


class RolloutWorker(Generic[W]):
    """A thread that samples ordered groups, each under the newest weights when it begins.

    It is a thread and not a process: matrix products release the interpreter lock, and both were
    measured to overlap equally well. A process would need a second search index, a second start,
    and pickled trajectories.
    """

    def __init__(
        self,
        make_replica: Callable[[], Replica[W]],
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
        self._failure: BaseException | None = None
        self.version: int | None = None
        """Version of the weights for groups that begin now; None before the first `publish`."""
        self._replicas: list[Replica[W]] = []
        self._current: Replica[W] | None = None
        self._sampling: set[asyncio.Task[None]] = set()
        self._beside_groups: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._inbox: asyncio.Queue[_Weights[W] | GroupOrder | None] = asyncio.Queue()
        self._finished: queue.SimpleQueue[SampledGroup | BaseException] = queue.SimpleQueue()
        self._serving: asyncio.Task[None]
        self._thread = threading.Thread(target=self._run, name="espalier-rollouts", daemon=True)

    @property
    def num_replicas(self) -> int:
        """Number of replicas made so far."""
        return len(self._replicas)

    def start(self) -> None:
        """Start the thread; it samples after the first `publish`."""
        self._former_threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        self._thread.start()

    def publish(self, version: int, weights: W) -> None:
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

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine beside the groups, under the weights published last; return its result.

        Raises:
            BaseException: the coroutine's error, or the worker's failure.
        """
        beside = self._beside(coroutine)
        done: concurrent.futures.Future[T] | None = None
        with suppress(RuntimeError):  # the loop is closed: the worker has failed, or was closed
            done = asyncio.run_coroutine_threadsafe(beside, self._loop)
        while done is not None and not done.done() and self._thread.is_alive():
            concurrent.futures.wait([done], timeout=_LOOKS_EVERY_S)
        if done is not None and done.done() and not done.cancelled():
            return done.result()
        # a worker that fails cancels what runs in it before it says why
        self._thread.join(_HUNG_THREAD_ENDS_WITHIN_S)
        for left in (beside, coroutine):  # they may never have begun
            left.close()
        raise self._failure or RuntimeError("the rollout worker was closed")

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

    async def _beside(self, coroutine: Coroutine[Any, Any, T]) -> T:
        own = asyncio.current_task()
        assert own is not None, "the loop runs it as a task"
        self._beside_groups.add(own)
        try:
            await self._inbox.join()  # its weights are loaded
            return await coroutine
        finally:
            coroutine.close()
            self._beside_groups.discard(own)

    def _send(self, message: _Weights[W] | GroupOrder | None) -> None:
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
                self._inbox.task_done()
        finally:
            tasks = [*self._sampling, *self._beside_groups]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for replica in self._replicas:
                await replica.close()

    async def _switch(self, weights: _Weights[W]) -> None:
        self._loads = weights.version
        replica = await self._free_replica()
        await replica.open(weights.version, weights.content)
        self._loads = None
        self._current = replica

    async def _free_replica(self) -> Replica[W]:
        """Return a replica that may be opened: the current one, or one without groups."""
        if self._current is not None and self._current.takes_weights_in_flight:
            return self._current
        former, self._current = self._current, None
        if former is not None and not former.in_flight:
            await former.close()
        free = [replica for replica in self._replicas if not replica.in_flight]
        if not free:
            free.append(self._make_replica())
            self._replicas.append(free[0])
        return free[0]

    def _begin(self, replica: Replica[W], order: GroupOrder) -> None:
        replica.in_flight += 1
        task = self._loop.create_task(self._sample(replica, order))
        self._sampling.add(task)
        task.add_done_callback(self._sampling.discard)
        task.add_done_callback(self._report_failure)

    async def _sample(self, replica: Replica[W], order: GroupOrder) -> None:
        self._finished.put(await replica.sample(order))
        replica.in_flight -= 1
        if not replica.in_flight and replica is not self._current:
            await replica.close()

    def _report_failure(self, task: asyncio.Task[None]) -> None:
        """Pass a failure on to the learner, which would otherwise wait forever."""
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = self._failure or failure
            self._finished.put(failure)

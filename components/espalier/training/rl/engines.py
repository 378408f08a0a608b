"""The engines that a run samples from, in turns with learning or ahead of it.

`InProcess` has the policy in memory, of this process or of workers on the nodes of a Ray cluster;
`OnServers` has vLLM servers. How far sampling runs ahead is a matter of `wiring`: each engine does
both.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from espalier.config import Profile
from espalier.curriculum.pool import TaskPool
from espalier.environments import Environments, EnvironmentsOver
from espalier.environments.contract import View
from espalier.policy.hardware import Hardware
from espalier.policy.loading import Policy
from espalier.rollout.engines.vllm import VllmServerEngine
from espalier.rollout.engines.vllm_pool import ServerPool
from espalier.rollout.roller import (
    Roller,
    RolloutCounts,
    RunsCoroutine,
    TrajectorySampler,
    dialect_of,
)
from espalier.rollout.waits import hangs_after_s
from espalier.training.checkpoint import cloned_weights
from espalier.training.parallel import Processes, whole_weights
from espalier.training.rl.asynchronous import (
    GroupWorker,
    PolicyReplica,
    Replica,
    RolloutWorker,
    ServerReplica,
)
from espalier.training.rl.publishing import (
    DirectoryPublisher,
    MemoryPublisher,
    PolicyDirectories,
    Publisher,
    WorkerPublisher,
)
from espalier.training.rl.reward_functions import RewardFunction
from espalier.training.rl.sampling import GroupSampler, RankZeroRoller, SplitRoller

T = TypeVar("T")
W = TypeVar("W")


class LocalWorker(NamedTuple):
    """A worker thread, and the rollers that it samples with."""

    worker: RolloutWorker[Any]
    rollers: Sequence[Roller]
    """Grows while the worker runs."""

    @property
    def counts(self) -> RolloutCounts:
        """Return what all replicas have sampled so far."""
        return RolloutCounts.total(roller.counts for roller in self.rollers)


OpensWorker = Callable[[], AbstractContextManager[LocalWorker]]
"""Opens a worker that runs, with its own policy and environments, in the process that calls it."""


class SamplerContext(NamedTuple):
    """The objects that sampling is built from, by every engine and at either pace."""

    profile: Profile
    policy: Policy
    """The policy in memory, for sampling."""
    trained: PreTrainedModel
    """The same model, or a copy whose weights the publisher copies back."""
    pool: TaskPool
    processes: Processes
    environments_over: EnvironmentsOver
    open_worker: OpensWorker
    """Can be pickled: it is called on other nodes."""
    reward_function: RewardFunction

    def group_sampler(self, roller: TrajectorySampler) -> GroupSampler:
        """Return a sampler of groups over `roller`."""
        return GroupSampler(
            roller,
            self.pool,
            self.profile.training,
            seed=self.profile.seed,
            screening=self.profile.curriculum.active_screening,
            reward_function=self.reward_function,
        )


def thread_worker(
    make_replica: Callable[[], Replica[W]],
    rollers: Sequence[Roller],
    profile: Profile,
    *,
    threads: int,
) -> LocalWorker:
    """Return a worker over replicas whose rollers are, or will be, in `rollers`."""
    worker = RolloutWorker(
        make_replica,
        threads=threads,
        limit_s=hangs_after_s(profile),
        waits=lambda: [roller.waits for roller in rollers],
    )
    return LocalWorker(worker, rollers)


def replica_worker(
    policy: Policy, environments: Environments, profile: Profile, *, threads: int
) -> LocalWorker:
    """Return a worker that samples on copies of a policy in memory."""
    rollers = list[Roller]()

    def make_replica() -> PolicyReplica:
        # a copy of the tokenizer too: it is not safe to use from two threads
        own = copy.deepcopy(policy)
        rollers.append(Roller.local(own, environments, profile, for_training=True))
        return PolicyReplica(rollers[-1], own.model)

    return thread_worker(make_replica, rollers, profile, threads=threads)


class ByWorker(NamedTuple):
    """What sampling by a worker needs of an engine, on rank 0."""

    worker: GroupWorker[Any]
    publisher: Publisher
    dev_roller: Roller
    counts: Callable[[], RolloutCounts]
    """Returns what the worker has sampled so far."""
    trial_roller: Callable[[], Roller]
    """Makes a roller of the learner's thread over the environments of training."""


class SamplingEngine(Protocol):
    """One kind of engine, at either pace."""

    def roller(self, view: View, *, for_training: bool = False) -> Roller:
        """Return a roller in the learner's thread over the environments of a view."""
        ...

    def shared(self, roller: Roller) -> TrajectorySampler:
        """Return the roller's part in rollouts that all processes share."""
        ...

    def publisher(self, rollers: Sequence[Roller]) -> Publisher:
        """Return what passes trained weights to these rollers."""
        ...

    def by_worker(self) -> ByWorker:
        """Return a worker that samples the groups ordered from it, and what belongs to it."""
        ...


class InProcess:
    """Samples from the policy in memory: each process does, in turns with learning."""

    def __init__(self, context: SamplerContext) -> None:
        self._context = context

    def roller(self, view: View, *, for_training: bool = False) -> Roller:
        """Return a roller on the policy in memory."""
        context = self._context
        environments = context.environments_over(view)
        return Roller.local(
            context.policy, environments, context.profile, for_training=for_training
        )

    def shared(self, roller: Roller) -> TrajectorySampler:
        """Return a roller that splits the tasks among the processes."""
        return SplitRoller(roller, self._context.processes)

    def publisher(self, rollers: Sequence[Roller]) -> Publisher:
        """Return a publisher in memory."""
        return MemoryPublisher(self._context.trained, self._context.policy, rollers)

    def by_worker(self) -> ByWorker:
        """Sample on copies of the policy: in a thread here, or on other nodes."""
        context, training = self._context, self._context.profile.training
        dev_roller = self.roller("dev")
        worker, counts, snapshot = (
            self._on_nodes() if training.rollout_workers else self._in_thread()
        )
        publisher = WorkerPublisher(
            self.publisher((dev_roller,)),
            lambda _: snapshot(context.policy.model),
            worker,
            every=training.asynchronous.publish_every,
        )
        # its own environments: the worker's thread uses the others at the same time
        return ByWorker(worker, publisher, dev_roller, counts, lambda: self.roller("train"))

    def _in_thread(self) -> _PlacedWorker:
        context = self._context
        local = replica_worker(
            context.policy,
            context.environments_over("train"),
            context.profile,
            threads=max(1, torch.get_num_threads() // 2),
        )
        return _PlacedWorker(local.worker, lambda: local.counts, cloned_weights)

    def _on_nodes(self) -> _PlacedWorker:
        from espalier.training.rl.ray_rollouts import WorkerGroup

        context, profile = self._context, self._context.profile
        group = WorkerGroup(
            profile.training.rollout_workers,
            context.open_worker,
            device=Hardware.for_sampling(profile.hardware).device,
            most_episodes=profile.rollout.max_rows,
            limit_s=hangs_after_s(profile),
        )
        return _PlacedWorker(group, lambda: group.counts, whole_weights)


class _PlacedWorker(NamedTuple):
    worker: GroupWorker[Mapping[str, Tensor]]
    counts: Callable[[], RolloutCounts]
    snapshot: Callable[[PreTrainedModel], Mapping[str, Tensor]]
    """Copies weights, so that later updates do not change them."""


class OnServers:
    """Samples from vLLM servers, to which rank 0 alone sends requests."""

    def __init__(self, context: SamplerContext, folder: Path) -> None:
        """Exchange weights by directories in `folder`."""
        profile = context.profile
        staleness, exchange = (
            profile.training.asynchronous.max_staleness,
            profile.rollout.vllm.exchange,
        )
        self._context = context
        self._pool = ServerPool(profile.rollout.vllm, connections=profile.rollout.max_rows)
        self._directories = PolicyDirectories(
            context.policy,
            folder,
            adapter_alone=exchange == "adapter",
            kept=staleness if exchange == "adapter" else 0,
        )

    def roller(self, view: View, *, for_training: bool = False) -> Roller:
        """Return a roller on the pool of servers."""
        return self._roller(self._context.policy.tokenizer, view, for_training=for_training)

    def shared(self, roller: Roller) -> TrajectorySampler:
        """Return a roller of rank 0 for all processes."""
        return RankZeroRoller(roller, self._context.processes)

    def publisher(self, rollers: Sequence[Roller]) -> Publisher:
        """Return a publisher by directories; the rollers share one pool, so one of them loads."""
        connected = rollers[:1] if self._context.processes.is_first else ()
        return DirectoryPublisher(self._local, connected, self._directories)

    def by_worker(self) -> ByWorker:
        """Sample in one thread on all servers, also what the learner evaluates."""
        context, profile = self._context, self._context.profile
        # a copy of the tokenizer: it is not safe to use from two threads
        tokenizer = copy.deepcopy(context.policy.tokenizer)
        rollers = [self._roller(tokenizer, "train", for_training=True)]

        async def exchange(directory: Path, version: int) -> None:
            await rollers[0].exchange_weights(directory, version)
            self._directories.remove_former(directory)

        local = thread_worker(
            lambda: ServerReplica(rollers[0], exchange),
            rollers,
            profile,
            threads=torch.get_num_threads(),
        )
        publisher = WorkerPublisher(
            self._local,
            self._directories.write,
            local.worker,
            every=profile.training.asynchronous.publish_every,
        )

        def run(coroutine: Coroutine[Any, Any, T], /) -> T:
            """Run a coroutine in the worker's thread, which has the connections to the servers."""
            publisher.catch_up()
            return local.worker.run(coroutine)

        def beside(view: View) -> Roller:
            return self._roller(context.policy.tokenizer, view, run=run)

        return ByWorker(
            local.worker, publisher, beside("dev"), lambda: local.counts, lambda: beside("train")
        )

    @property
    def _local(self) -> Publisher:
        return MemoryPublisher(self._context.trained, self._context.policy, ())

    def _roller(
        self,
        tokenizer: PreTrainedTokenizerBase,
        view: View,
        *,
        for_training: bool = False,
        run: RunsCoroutine = asyncio.run,
    ) -> Roller:
        profile = self._context.profile
        environments = self._context.environments_over(view)
        dialect = dialect_of(tokenizer, environments, profile)
        engine = VllmServerEngine(
            profile.rollout.vllm, dialect, max_rows=profile.rollout.max_rows, pool=self._pool
        )
        return Roller(engine, dialect, environments, profile, for_training=for_training, run=run)

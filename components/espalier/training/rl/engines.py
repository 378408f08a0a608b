"""The engines that a run samples from, in turns with learning or ahead of it.

`InProcess` has the policy in memory, `OnServers` vLLM servers. How far sampling runs ahead is a
matter of `wiring`: each engine does both.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from espalier.config import Profile
from espalier.curriculum.pool import TaskPool
from espalier.environments import EnvironmentsOver
from espalier.environments.contract import View
from espalier.policy.loading import Policy
from espalier.rollout.engines.vllm import VllmServerEngine
from espalier.rollout.engines.vllm_pool import ServerPool
from espalier.rollout.roller import Roller, RunsCoroutine, TrajectorySampler, dialect_of
from espalier.rollout.waits import hangs_after_s
from espalier.training.checkpoint import cloned_weights
from espalier.training.parallel import Processes
from espalier.training.rl.asynchronous import (
    GroupPlan,
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

W = TypeVar("W")


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

    def worker(
        self, make_replica: Callable[[], Replica[W]], rollers: Sequence[Roller], *, threads: int
    ) -> RolloutWorker[W]:
        """Return a worker over replicas whose rollers are, or will be, in `rollers`."""
        return RolloutWorker(
            make_replica,
            threads=threads,
            limit_s=hangs_after_s(self.profile),
            waits=lambda: [roller.waits for roller in rollers],
        )


class Ahead(NamedTuple):
    """What sampling ahead needs of an engine, on rank 0."""

    worker: RolloutWorker[Any]
    publisher: Publisher
    dev_roller: Roller
    rollers: Sequence[Roller]
    make_trial_roller: Callable[[], TrajectorySampler]


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

    def ahead(self, plan: GroupPlan) -> Ahead:
        """Return a worker that samples groups ahead of the learner, and what belongs to it."""
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

    def ahead(self, plan: GroupPlan) -> Ahead:
        """Sample on copies of the policy."""
        context, profile, policy = self._context, self._context.profile, self._context.policy
        environments, rollers = context.environments_over("train"), list[Roller]()

        def make_replica() -> PolicyReplica:
            # a copy of the tokenizer too: it is not safe to use from two threads
            own = copy.deepcopy(policy)
            rollers.append(Roller.local(own, environments, profile, for_training=True))
            return PolicyReplica(rollers[-1], own.model, plan)

        worker = context.worker(make_replica, rollers, threads=max(1, torch.get_num_threads() // 2))
        dev_roller = self.roller("dev")
        publisher = WorkerPublisher(
            self.publisher((dev_roller,)),
            lambda _: cloned_weights(policy.model),
            worker,
            every=profile.training.asynchronous.publish_every,
        )
        # its own environments: the worker's thread uses the others at the same time
        return Ahead(
            worker,
            publisher,
            dev_roller,
            rollers,
            lambda: RankZeroRoller(self.roller("train"), context.processes),
        )


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

    def ahead(self, plan: GroupPlan) -> Ahead:
        """Sample in one thread on all servers, also what the learner evaluates."""
        context, profile = self._context, self._context.profile
        # a copy of the tokenizer: it is not safe to use from two threads
        tokenizer = copy.deepcopy(context.policy.tokenizer)
        rollers = [self._roller(tokenizer, "train", for_training=True)]

        async def exchange(directory: Path, version: int) -> None:
            await rollers[0].exchange_weights(directory, version)
            self._directories.remove_former(directory)

        worker = context.worker(
            lambda: ServerReplica(rollers[0], exchange, plan),
            rollers,
            threads=torch.get_num_threads(),
        )
        publisher = WorkerPublisher(
            self._local,
            self._directories.write,
            worker,
            every=profile.training.asynchronous.publish_every,
        )

        def beside(view: View) -> Roller:
            return self._roller(context.policy.tokenizer, view, run=publisher.run)

        return Ahead(
            worker,
            publisher,
            beside("dev"),
            rollers,
            lambda: RankZeroRoller(beside("train"), context.processes),
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

"""Wiring a run: models, rollers, curriculum and publisher of one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import torch
from transformers import PreTrainedModel

from espalier.config import Profile
from espalier.curriculum.pool import TaskPool
from espalier.environments import EnvironmentsOver
from espalier.policy.loading import Policy, load_policy
from espalier.records import read_tasks
from espalier.rollout.exploration import kind_choice
from espalier.rollout.roller import Roller, RollsOut
from espalier.training.checkpoint import CheckpointStore
from espalier.training.dev_score import dev_exact_match
from espalier.training.hardware import Hardware
from espalier.training.parallel import Processes
from espalier.training.rl.admission import SamplesGroups
from espalier.training.rl.asynchronous import AsynchronousSampler
from espalier.training.rl.lane import Lane, Plan
from espalier.training.rl.loop import Parts, RlLoop
from espalier.training.rl.models import layout_for, trainable
from espalier.training.rl.posed_tasks import self_play_with, shared_poser
from espalier.training.rl.publishing import (
    DirectoryPublisher,
    MemoryPublisher,
    Publisher,
    WorkerPublisher,
)
from espalier.training.rl.rollout_worker import RolloutWorker
from espalier.training.rl.sampling import GroupSampler
from espalier.training.rl.shared_rollouts import FirstRoller, FirstSampler, SplitRoller


class Run(NamedTuple):
    """One process's loop, and what comes of it."""

    policy: Policy
    """The trained one, after the loop."""
    loop: RlLoop
    rollers: Sequence[Roller]
    """Whoever has sampled; more of them may come while the loop runs."""

    @property
    def figures(self) -> dict[str, float]:
        """Throughput of this process, what its learner waited for, turns whose tokens drifted."""
        seconds = sum(roller.seconds for roller in self.rollers)
        tokens = sum(roller.total_tokens for roller in self.rollers)
        # beside the learner, sampling has no time of its own
        rate = tokens / (seconds or self.loop.seconds or 1.0)
        wait = self.loop.waited_s / (self.loop.seconds or 1.0)
        return {
            "rollout_tokens_per_s": rate,
            "learner_wait_share": wait,
            "token_drift": sum(roller.drift.drifted for roller in self.rollers),
            "compared_turns": sum(roller.drift.turns for roller in self.rollers),
        }


class _Sampling(NamedTuple):
    sampler: SamplesGroups
    publisher: Publisher
    dev_roller: Roller
    rollers: Sequence[Roller]
    trying: Callable[[], RollsOut]
    """Makes the roller that tries posed tasks, in the learner's thread of every process."""


def wired(
    profile: Profile,
    inputs: Mapping[str, Path],
    store: CheckpointStore,
    processes: Processes,
    environments_over: EnvironmentsOver,
) -> Run:
    """The loop of one process; all of several are wired alike.

    Args:
        profile: of the run.
        inputs: what it reads.
        store: its checkpoints.
        processes: those that train together.
        environments_over: where the episodes are played, by view.
    """
    config = profile.training
    policy = load_policy(inputs["warm_policy"] / "policy")
    hardware = Hardware.chosen(profile.hardware)
    models = trainable(policy.model, config, hardware, processes)
    pool = _task_pool(profile, inputs["curriculum"])
    poser = shared_poser(profile, inputs, processes)
    context = SamplerContext(
        profile, policy, models.policy.model, pool, processes, environments_over
    )
    if config.asynchronous.max_staleness:
        sampling = _beside_the_learner(context)
    elif profile.rollout.engine == "vllm":
        sampling = _by_server(context, inputs, store.directory / "published")
    else:
        sampling = _in_turns(context)
    dev_tasks = read_tasks(inputs["accepted"] / "tasks" / "dev.jsonl")[: config.dev_questions]
    epsilon = profile.rollout.exploration.kind_epsilon
    layout = layout_for(policy.model, profile, hardware, processes)
    parts = Parts(
        models=models,
        layout=layout,
        sampler=sampling.sampler,
        pool=pool,
        self_play=None
        if poser is None
        else self_play_with(poser, profile, pool, sampling.trying(), models, layout),
        judge=lambda: dev_exact_match(sampling.dev_roller, dev_tasks),
        publisher=sampling.publisher,
        kind_choice=kind_choice(sampling.dev_roller.dialect, epsilon),
    )
    return Run(policy, RlLoop(profile, parts, store), sampling.rollers)


class SamplerContext(NamedTuple):
    """What each way of sampling is given."""

    profile: Profile
    policy: Policy
    """In memory, for sampling."""
    trained: PreTrainedModel
    """The same model, or one whose weights are to be copied."""
    pool: TaskPool
    processes: Processes
    environments_over: EnvironmentsOver

    def group_sampler(self, roller: RollsOut) -> GroupSampler:
        """Fills a step by `roller`."""
        return GroupSampler(
            roller,
            self.pool,
            self.profile.training,
            seed=self.profile.seed,
            screening=self.profile.curriculum.active_screening,
        )


def _in_turns(context: SamplerContext) -> _Sampling:
    """Sampling and learning take turns on one model in memory."""
    profile, policy = context.profile, context.policy
    exploration = profile.rollout.exploration
    environments = context.environments_over("train")
    roller = Roller.local(policy, environments, profile, exploration=exploration)
    dev_roller = Roller.local(policy, context.environments_over("dev"), profile)
    publisher = MemoryPublisher(context.trained, policy, (roller, dev_roller))
    shared = SplitRoller(roller, context.processes)
    return _Sampling(
        context.group_sampler(shared), publisher, dev_roller, (roller,), trying=lambda: shared
    )


def _by_server(context: SamplerContext, inputs: Mapping[str, Path], directory: Path) -> _Sampling:
    """A server samples, from weights that it reads from `directory`."""
    profile, policy_dir = context.profile, inputs["warm_policy"] / "policy"
    exploration = profile.rollout.exploration
    environments = context.environments_over("train")
    roller = Roller.open(policy_dir, environments, profile, exploration=exploration)
    dev_roller = Roller.open(policy_dir, context.environments_over("dev"), profile)
    talking = (roller, dev_roller) if context.processes.is_first else ()
    publisher = DirectoryPublisher(context.trained, context.policy, talking, directory)
    shared = FirstRoller(roller, context.processes)
    return _Sampling(
        context.group_sampler(shared), publisher, dev_roller, (roller,), trying=lambda: shared
    )


def _beside_the_learner(context: SamplerContext) -> _Sampling:
    """A worker of the first process samples ahead, on copies of the policy."""
    profile, policy, processes = context.profile, context.policy, context.processes
    config, screening = profile.training, profile.curriculum.active_screening
    dev_roller = Roller.local(policy, context.environments_over("dev"), profile)
    local = MemoryPublisher(context.trained, policy, (dev_roller,))

    def trying() -> RollsOut:
        # an index of its own: the worker's thread searches the other at the same time
        environments = context.environments_over("train")
        return FirstRoller(Roller.local(policy, environments, profile), processes)

    if not processes.is_first:
        return _Sampling(FirstSampler(None, processes), local, dev_roller, (), trying)
    environments = context.environments_over("train")
    rollers: list[Roller] = []

    def make_lane() -> Lane:
        # a tokenizer is not to be used by two threads at a time
        own = copy.deepcopy(policy)
        exploration = profile.rollout.exploration
        rollers.append(Roller.local(own, environments, profile, exploration=exploration))
        wants_baseline = "baseline_rewards_B" in config.algorithm.needs
        return Lane(rollers[-1], own.model, Plan(config.group_size, screening, wants_baseline))

    worker = RolloutWorker(make_lane, threads=max(1, torch.get_num_threads() // 2))
    sampler = AsynchronousSampler(
        worker, context.pool, config, seed=profile.seed, screening=screening
    )
    worker.start()
    publisher = WorkerPublisher(local, policy, worker, every=config.asynchronous.publish_every)
    return _Sampling(FirstSampler(sampler, processes), publisher, dev_roller, rollers, trying)


def _task_pool(profile: Profile, curriculum: Path) -> TaskPool:
    """The pool as the filter left it: every candidate with its measured pass rate."""
    pool = TaskPool(read_tasks(curriculum / "tasks.jsonl"), profile.curriculum)
    for row in pq.read_table(curriculum / "pass_rates.parquet").to_pylist():
        pool.observe(row["task_id"], attempts=row["attempts"], successes=row["successes"])
    pool.refresh()
    return pool

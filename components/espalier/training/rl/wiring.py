"""Builds a run's objects: models, rollers, curriculum and publisher of one process.

Sampling by a worker (`_by_worker`) is the same for a thread ahead of the learner and for workers on
other nodes, at either pace; else each process samples on its own engine (`_in_turns`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import torch
from transformers import PreTrainedModel

from espalier.chain import policy_digest
from espalier.config import Profile, term_context
from espalier.curriculum.pool import TaskPool
from espalier.curriculum.prediction import Description
from espalier.environments import EnvironmentsOver, family_of
from espalier.environments.memory import remembering
from espalier.environments.mixins import Renames
from espalier.policy.hardware import Hardware
from espalier.policy.loading import Policy, load_policy_to_train
from espalier.records import Task, TrainingError, read_manifest, read_tasks
from espalier.rollout.roller import Roller, RolloutCounts, TrajectorySampler, kind_choice
from espalier.training.checkpoint import CheckpointStore
from espalier.training.dev_questions import dev_questions
from espalier.training.health.canaries import canaries_of, right_share
from espalier.training.parallel import Processes
from espalier.training.rl.asynchronous import OrderingRoller
from espalier.training.rl.engines import (
    InProcess,
    LocalWorker,
    OnServers,
    SamplerContext,
    SamplingEngine,
    replica_worker,
)
from espalier.training.rl.ledger import JOURNAL, DrawJournal
from espalier.training.rl.loop import LoopParts, RlLoop
from espalier.training.rl.models import Models, build_layout, build_models
from espalier.training.rl.pacing import AsynchronousSampler
from espalier.training.rl.publishing import Publisher
from espalier.training.rl.reward_functions import ProfileRewards, RewardFunction
from espalier.training.rl.sampling import RankZeroRoller, RankZeroSampler, StepSampler
from espalier.training.rl.self_play import JudgedRoller, build_self_play, shared_proposer
from espalier.training.supervised import DevScore, dev_exact_match


class TrainingRun(NamedTuple):
    """The loop of one process, and the policy that it trains."""

    policy: Policy
    loop: RlLoop
    counts: Callable[[], RolloutCounts]
    """Returns what training has sampled so far."""
    dev_roller: Roller
    dev_questions: int
    """Questions that choose the weights."""

    @property
    def figures(self) -> dict[str, float]:
        """Return this process's throughput, its learner's waiting time, and drifted turns."""
        counts = self.counts()
        # asynchronous sampling overlaps with learning: count the whole duration
        rate = counts.tokens / (counts.seconds or self.loop.seconds or 1.0)
        wait = self.loop.waited_s / (self.loop.seconds or 1.0)
        return {
            "rollout_tokens_per_s": rate,
            "learner_wait_share": wait,
            "token_drift": counts.drifted_turns,
            "compared_turns": counts.compared_turns,
            **self._drafts(counts),
        }

    def _drafts(self, counts: RolloutCounts) -> dict[str, float]:
        """Return counts of drafted tokens (`rollout.speculation`); {} if there are none.

        Most drafts are those of the dev questions.
        """
        if not self.dev_roller.drafted_tokens:
            return {}
        total = RolloutCounts.total((counts, self.dev_roller.counts))
        return {
            "drafted_tokens": total.drafted_tokens,
            "accepted_tokens": total.accepted_tokens,
        }


class _Sampling(NamedTuple):
    sampler: StepSampler
    publisher: Publisher
    dev_roller: Roller
    counts: Callable[[], RolloutCounts]
    make_trial_roller: Callable[[], TrajectorySampler]
    """Makes the roller of attempts at proposed tasks, in the learner's thread of every process."""


OpensEnvironments = Callable[[], AbstractContextManager[EnvironmentsOver]]


def family_environments(
    profile: Profile, inputs: Mapping[str, Path]
) -> AbstractContextManager[EnvironmentsOver]:
    """Return a context with the environments of the profile's family for one process.

    Args:
        profile: profile of the run.
        inputs: artifact directories by name.
    """
    return remembering(profile, inputs["accepted"]).environments(inputs["knowledge"])


@contextmanager
def _opened_worker(
    profile: Profile, inputs: Mapping[str, Path], open_environments: OpensEnvironments
) -> Generator[LocalWorker]:
    """Run a rollout worker with a policy and environments of its own, for the block.

    It samples after weights were published to it.

    Raises:
        TrainingError: a directory of `inputs` is not there.
    """
    for folder in inputs.values():
        if not folder.is_dir():
            raise TrainingError(
                f"there is no {folder} here: the rollout workers of training.rollout_workers read "
                "the run's artifacts. Put the run on storage that all nodes mount at one path"
            )
    with open_environments() as environments_over:
        local = replica_worker(
            _policy_to_train(profile, inputs),
            environments_over("train"),
            profile,
            threads=torch.get_num_threads(),
        )
        local.worker.start()
        try:
            yield local
        finally:
            local.worker.close()


def _policy_to_train(profile: Profile, inputs: Mapping[str, Path]) -> Policy:
    warm = inputs["warm_policy"]
    digest = policy_digest(read_manifest(warm))
    return load_policy_to_train(warm / "policy", profile, digest=digest)


def build_run(
    profile: Profile,
    inputs: Mapping[str, Path],
    store: CheckpointStore,
    processes: Processes,
    environments_over: EnvironmentsOver,
    *,
    open_environments: OpensEnvironments | None = None,
) -> TrainingRun:
    """Build the loop of one process; every process calls this with the same arguments.

    Args:
        profile: profile of the run.
        inputs: artifact directories by name.
        store: store of the run's checkpoints.
        processes: the processes that train together.
        environments_over: makes the environments of a view ("train", "dev").
        open_environments: opens them anew in rollout workers on other nodes; can be pickled. None
            opens those of the profile's family.
    """
    config, family = profile.training, family_of(profile)
    policy = _policy_to_train(profile, inputs)
    hardware = Hardware.from_config(profile.hardware)
    models = _placed_models(policy.model, profile, hardware, processes)
    pool = _task_pool(profile, inputs)
    proposer = shared_proposer(profile, inputs, processes)
    layout = build_layout(policy.model, profile, hardware, processes)
    rewards, in_turns = ProfileRewards.of(profile, layout), config.asynchronous.max_staleness == 0
    has_worker = not in_turns or config.rollout_workers > 0
    absolute = {name: path.resolve() for name, path in inputs.items()}
    context = SamplerContext(
        profile,
        policy,
        models.policy.model,
        pool,
        processes,
        environments_over,
        partial(
            _opened_worker,
            profile,
            absolute,
            open_environments or partial(family_environments, profile, absolute),
        ),
        rewards if has_worker else _computed_once(rewards, processes),
    )
    is_here = profile.rollout.engine == "lockstep"
    engine = InProcess(context) if is_here else OnServers(context, store.directory / "published")
    sampling = _by_worker(context, engine) if has_worker else _in_turns(context, engine)
    # without sampling ahead the same draws are made again, without a journal
    if processes.is_first and not in_turns:
        journal = DrawJournal(store.directory / JOURNAL, store.identity)
        sampling.sampler.ledger.journal = journal
    judged = dev_questions(profile, family, inputs, training="training")
    canaries = canaries_of(family, judged, config.health.canaries, profile.seed)
    epsilon = profile.rollout.exploration.kind_epsilon
    parts = LoopParts(
        models=models,
        layout=layout,
        sampler=sampling.sampler,
        pool=pool,
        self_play=None
        if proposer is None
        else build_self_play(
            proposer,
            profile,
            pool,
            JudgedRoller(sampling.make_trial_roller(), rewards.judged),
            models,
            layout,
        ),
        dev_score=partial(_dev_score, sampling.dev_roller, judged, canaries),
        publisher=sampling.publisher,
        kind_choice=kind_choice(sampling.dev_roller.dialect, epsilon),
        reward_figures=rewards.figures,
        dialect=sampling.dev_roller.dialect,
    )
    loop = RlLoop(profile, parts, store)
    return TrainingRun(policy, loop, sampling.counts, sampling.dev_roller, len(judged))


def _dev_score(roller: Roller, tasks: Sequence[Task], canaries: Sequence[Task]) -> DevScore:
    score = dev_exact_match(roller, tasks)
    asked = roller.roll_out(canaries, samples=1, temperature=0.0, seed=0) if canaries else []
    return score._replace(canaries_right=right_share(asked))


def _placed_models(
    sampling: PreTrainedModel, profile: Profile, hardware: Hardware, processes: Processes
) -> Models:
    """The models that train, with `sampling` moved to where this process samples.

    If the model itself is trained, unsharded, it is moved first: a model on another device would be
    copied. Shards are made from a copy, and the whole model is moved only after that, because both
    might not fit before. Where a server samples, the model stays on the CPU.
    """
    sampling_hardware, config = Hardware.for_sampling(profile.hardware), profile.training
    if not config.sharded:
        sampling_hardware.move(sampling)
        return build_models(sampling, config, hardware, processes)
    models = build_models(sampling, config, hardware, processes)
    if profile.rollout.engine == "lockstep":
        sampling_hardware.move(sampling)
    return models


def _computed_once(rewards: ProfileRewards, processes: Processes) -> RewardFunction:
    """Return a `RewardFunction` that asks models on rank 0 only.

    Terms that ask no model are added by each process. With a worker, only rank 0 has groups, and
    their rewards are complete before they are shared.
    """
    if processes.count == 1 or not rewards.asks_models:
        return rewards
    return lambda group: processes.broadcast(rewards(group) if processes.is_first else list(group))


def _in_turns(context: SamplerContext, engine: SamplingEngine) -> _Sampling:
    """Sample and learn alternately, on the engine of each process."""
    roller, dev_roller = engine.roller("train", for_training=True), engine.roller("dev")
    publisher = engine.publisher((roller, dev_roller))
    shared = engine.shared(roller)
    return _Sampling(
        context.group_sampler(shared),
        publisher,
        dev_roller,
        lambda: roller.counts,
        lambda: shared,
    )


def _by_worker(context: SamplerContext, engine: SamplingEngine) -> _Sampling:
    """Sample in a worker of rank 0, ahead of the learner or in turns with it."""
    config, processes = context.profile.training, context.processes
    if not processes.is_first:
        dev_roller = engine.roller("dev")
        return _Sampling(
            RankZeroSampler(None, processes),
            engine.publisher((dev_roller,)),
            dev_roller,
            RolloutCounts,
            lambda: RankZeroRoller(engine.roller("train"), processes),
        )
    by_worker = engine.by_worker()
    worker, ordering = by_worker.worker, OrderingRoller(by_worker.worker)
    in_turns = config.asynchronous.max_staleness == 0
    sampler = (
        context.group_sampler(ordering)
        if in_turns
        else AsynchronousSampler(
            worker,
            context.pool,
            config,
            seed=context.profile.seed,
            screening=context.profile.curriculum.active_screening,
            reward_function=context.reward_function,
        )
    )
    worker.start()
    return _Sampling(
        RankZeroSampler(sampler, processes, end_worker=worker.close),
        by_worker.publisher,
        by_worker.dev_roller,
        lambda: by_worker.counts()._replace(seconds=ordering.seconds),
        # ahead, the groups in flight are the sampler's alone
        lambda: RankZeroRoller(ordering if in_turns else by_worker.trial_roller(), processes),
    )


def _task_pool(profile: Profile, inputs: Mapping[str, Path]) -> TaskPool:
    """Return the curriculum artifact's pool: every candidate with its measured pass rate."""
    family, curriculum = family_of(profile), inputs["curriculum"]
    share = profile.renamed_training_share
    predicts, rewarded = profile.training.algorithm.predicts_rewards, term_context(profile)
    pool = TaskPool(
        read_tasks(curriculum / "tasks.jsonl"),
        profile.curriculum,
        group_size=profile.training.group_size,
        reward_span=(rewarded.outcome_low, rewarded.outcome_high) if predicts else None,
        describe=lambda task: Description(
            family.of(task).report_groups(task), family.of(task).names_of(task)
        ),
        rename=family.task_renaming(inputs["knowledge"], share)
        if share and isinstance(family, Renames)
        else None,
    )
    for row in pq.read_table(curriculum / "pass_rates.parquet").to_pylist():
        pool.observe(row["task_id"], attempts=row["attempts"], successes=row["successes"])
    pool.refresh()
    return pool

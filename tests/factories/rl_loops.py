"""RL loops over the tiny policy, from a short warm start, synchronous and not."""

import threading

import torch

from espalier.config import Profile
from espalier.curriculum.pool import TaskPool
from espalier.policy.hardware import Hardware
from espalier.records import NullTracker
from espalier.rollout.roller import Roller, kind_choice
from espalier.training.checkpoint import CheckpointStore, cloned_weights
from espalier.training.parallel import Processes
from espalier.training.rl.asynchronous import PolicyReplica, RolloutWorker
from espalier.training.rl.ledger import JOURNAL, DrawJournal
from espalier.training.rl.loop import LoopParts, RlLoop
from espalier.training.rl.models import build_layout, build_models
from espalier.training.rl.pacing import AsynchronousSampler
from espalier.training.rl.publishing import MemoryPublisher, WorkerPublisher
from espalier.training.rl.sampling import GroupSampler
from espalier.training.supervised import DevScore, dev_exact_match
from tests.factories.tiny import lookup_environments
from tests.factories.training import PROFILE, SEARCH, TASKS, make_task, warm_policy

HOPELESS = [make_task(name) for name in ("nowhere", "nobody", "nothing", "never")]
IDLE = {"stop_after_idle_steps": 3, "reward": {"format": 0.0}, "steps": 6}


def greedy(roller):
    return dev_exact_match(roller, TASKS).em


def pass_rate(roller, seed):
    rolled = roller.roll_out(TASKS, samples=40, temperature=1.0, seed=seed)
    return sum(trajectory.reward["outcome"] for trajectory in rolled) / len(rolled)


def loop_of(warm, directory, profile=PROFILE, dev_score=greedy, tasks=TASKS):
    policy = warm_policy(warm)
    roller = Roller.local(policy, lookup_environments(SEARCH, profile), profile, for_training=True)
    hardware = Hardware.from_config(profile.hardware)
    models = build_models(policy.model, profile.training, hardware, Processes())
    span = (0.0, 1.0) if profile.training.algorithm.predicts_rewards else None
    pool = TaskPool(tasks, profile.curriculum, reward_span=span)
    parts = LoopParts(
        models=models,
        layout=build_layout(policy.model, profile, hardware, Processes()),
        sampler=GroupSampler(
            roller,
            pool,
            profile.training,
            seed=profile.seed,
            screening=profile.curriculum.active_screening,
        ),
        pool=pool,
        dev_score=lambda: DevScore(dev_score(roller)),
        publisher=MemoryPublisher(models.policy.model, policy, [roller]),
        kind_choice=kind_choice(roller.dialect, profile.rollout.exploration.kind_epsilon),
    )
    return RlLoop(profile, parts, CheckpointStore(directory, "run")), policy.model


def run_loop(warm, directory, tracker=None, **settings):
    loop, model = loop_of(warm, directory, **settings)
    loop.run(tracker or NullTracker())
    return loop, model


def run_beside(warm, directory, tracker=None, dev_score=greedy, tasks=TASKS, **training):
    """A loop with asynchronous rollouts."""
    profile = changed(asynchronous={"max_staleness": 2}, **training)
    config, screening = profile.training, profile.curriculum.active_screening
    policy = warm_policy(warm)
    dev_roller = Roller.local(policy, lookup_environments(SEARCH, profile), profile)
    pool, hardware = TaskPool(tasks, profile.curriculum), Hardware.from_config(profile.hardware)
    models = build_models(policy.model, config, hardware, Processes())

    def make_replica():
        own = warm_policy(warm)
        return PolicyReplica(
            Roller.local(own, lookup_environments(SEARCH, profile), profile), own.model
        )

    worker = RolloutWorker(make_replica, threads=1)
    store = CheckpointStore(directory, "run")
    sampler = AsynchronousSampler(worker, pool, config, seed=0, screening=screening)
    sampler.ledger.journal = DrawJournal(directory / JOURNAL, store.identity)
    local = MemoryPublisher(models.policy.model, policy, [dev_roller])
    parts = LoopParts(
        models=models,
        layout=build_layout(policy.model, profile, hardware, Processes()),
        sampler=sampler,
        pool=pool,
        dev_score=lambda: DevScore(dev_score(dev_roller)),
        publisher=WorkerPublisher(local, lambda _: cloned_weights(policy.model), worker),
    )
    worker.start()
    loop = RlLoop(profile, parts, store)
    loop.run(tracker or NullTracker())
    return loop, policy.model


def same_weights(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def changed(*, reward=None, hardware=None, **training):
    values = PROFILE.model_dump()
    for section, changes in (("reward", reward), ("hardware", hardware), ("training", training)):
        values[section].update(changes or {})
    return Profile.model_validate(values)


def rollout_threads():
    return [t for t in threading.enumerate() if t.name == "espalier-rollouts"]

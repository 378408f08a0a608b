"""What each of two processes does in the tests of shared training."""

import math
from functools import partial

import torch

from espalier.curriculum.pool import TaskPool
from espalier.records import NullTracker
from espalier.training.checkpoint import CheckpointStore
from espalier.training.launch import local_workers, training_processes
from espalier.training.parallel import whole_weights
from espalier.training.rl.loop import LoopParts, RlLoop
from espalier.training.rl.models import build_layout, build_models
from espalier.training.rl.publishing import MemoryPublisher
from espalier.training.rl.rows import dense_rows
from espalier.training.rl.sampling import GroupSampler, SplitRoller
from espalier.training.rl.update import PolicyUpdate
from espalier.training.supervised import DevScore
from tests.factories.tiny import tiny_policy
from tests.factories.training import PROFILE, TASKS, make_task, warm_roller
from tests.factories.training_episodes import (
    CPU,
    exact_policy,
    layout,
    mixed_groups,
    profile_of,
    step_of,
)

ALGORITHMS = {
    "plain": {"preset": "default"},
    "cached gradient": {"preset": "kl_cov"},
    "critic and reference": {"preset": "ppo", "critic": {"warmup_steps": 0}},
}
CASES = [(name, sharded) for name in ALGORITHMS for sharded in (False, True)]


def two_steps(name, processes, *, sharded=False):
    """Figures of two steps on the same groups, then weights and optimizer state."""
    settings = {"processes": 2, "sharded": sharded} if processes.count > 1 else {}
    profile = profile_of(ALGORITHMS[name], minibatches=2, **settings)
    how = layout(micro_batch_tokens=48, processes=processes)
    models = build_models(exact_policy(), profile.training, CPU, processes)
    update = PolicyUpdate(models, profile.training, how, max_action_tokens=56)
    rows = dense_rows(mixed_groups(sizes=(4, 4, 3)), with_observations=False)
    units = [(row,) for row in range(len(rows))]
    figures = [update.apply(rows, units, step_of(profile, number)) for number in range(2)]
    state = update.state()
    update.restore(state)
    return figures, whole_weights(models.policy.model), state["optimizer"]["state"]


def one_broken_gradient(processes, *, sharded=False):
    """Figures and weights of a step in which one of two minibatches is NaN in one process alone."""
    profile = profile_of({"preset": "default"}, minibatches=2, processes=2, sharded=sharded)
    models = build_models(exact_policy(), profile.training, CPU, processes)
    how = layout(micro_batch_tokens=48, processes=processes)
    update = PolicyUpdate(models, profile.training, how, max_action_tokens=56)
    calls = iter(range(99))

    def spoil(_module, _inputs, logits):
        return logits * (math.nan if processes.rank == 1 and next(calls) == 0 else 1.0)

    models.policy.model.get_output_embeddings().register_forward_hook(spoil)
    rows = dense_rows(mixed_groups(sizes=(4, 4, 3)), with_observations=False)
    figures = update.apply(rows, [(row,) for row in range(len(rows))], step_of(profile))
    return figures, whole_weights(models.policy.model)


def short_loop(processes, directory, steps=3, tasks=TASKS, *, reward=None, **training):
    """A loop in which each process plays half of the tasks; history and final weights."""
    values = PROFILE.model_dump()
    values["training"] |= {"steps": steps, "processes": 2, "algorithm": {"filters": []}} | training
    values["reward"] |= reward or {}
    profile = type(PROFILE).model_validate(values)
    policy = tiny_policy()
    roller = warm_roller(policy)
    models = build_models(policy.model, profile.training, CPU, processes)
    pool = TaskPool(tasks, profile.curriculum)
    parts = LoopParts(
        models=models,
        layout=build_layout(policy.model, profile, CPU, processes),
        sampler=GroupSampler(SplitRoller(roller, processes), pool, profile.training, seed=0),
        pool=pool,
        dev_score=lambda: DevScore(processes.rank),
        publisher=MemoryPublisher(models.policy.model, policy, [roller]),
    )
    loop = RlLoop(profile, parts, CheckpointStore(directory, "run"))
    loop.run(NullTracker())
    return loop.progress.history, whole_weights(policy.model)


def everything(processes, directory):
    """All that the tests look at, in the order that both processes keep to."""
    return {
        "steps": {
            (name, sharded): two_steps(name, processes, sharded=sharded) for name, sharded in CASES
        },
        "loops": processes.gather(short_loop(processes, directory / "loop")),
        "resumed": processes.gather(short_loop(processes, directory / "loop", steps=3)),
        "broken": {
            sharded: processes.gather(one_broken_gradient(processes, sharded=sharded))
            for sharded in (False, True)
        },
        "idle": processes.gather(
            short_loop(
                processes,
                directory / "idle",
                steps=6,
                tasks=[make_task(f"nowhere{number}") for number in range(4)],
                stop_after_idle_steps=2,
                reward={"format": 0.0},
            )
        ),
        "ranks": processes.gather(processes.rank),
        "said": processes.broadcast(f"by {processes.rank}"),
    }


def run_worker(directory, processes):
    """The second process."""
    everything(processes, directory)


def found_together(directory, launcher=local_workers):
    """What two processes find, seen from the first."""
    with training_processes(
        2,
        device=torch.device("cpu"),
        worker_main=partial(run_worker, directory),
        launcher=launcher,
        timeout_s=600,
    ) as processes:
        return everything(processes, directory)

"""Wiring a run: models, rollers, curriculum and publisher of one process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow.parquet as pq

from espalier.config import Profile
from espalier.curriculum.pool import TaskPool
from espalier.knowledge.search import SearchTool
from espalier.policy.loading import Policy, load_policy
from espalier.rollout.exploration import kind_choice
from espalier.rollout.roller import Roller
from espalier.tasks import read_tasks
from espalier.training.checkpoint import CheckpointStore
from espalier.training.dev_score import dev_exact_match
from espalier.training.hardware import Hardware
from espalier.training.parallel import Processes
from espalier.training.rl.loop import Parts, RlLoop
from espalier.training.rl.models import layout_for, trainable
from espalier.training.rl.publishing import DirectoryPublisher, MemoryPublisher, Publisher
from espalier.training.rl.shared_rollouts import FirstRoller, SplitRoller


class ReadsArtifacts(Protocol):
    """The artifact directories that training reads."""

    @property
    def knowledge(self) -> Path:
        """Documents and their indexes, by view."""
        ...

    @property
    def accepted(self) -> Path:
        """Validated tasks."""
        ...

    @property
    def curriculum(self) -> Path:
        """Tasks and their pass rates."""
        ...

    @property
    def warm_policy(self) -> Path:
        """The policy to start from."""
        ...


class Run(NamedTuple):
    """One process's loop, and what comes of it."""

    policy: Policy
    """The trained one, after the loop."""
    loop: RlLoop
    roller: Roller

    @property
    def rollout_tokens_per_s(self) -> float:
        """Tokens forwarded by this process's engine in a second of rolling out."""
        return self.roller.total_tokens / self.roller.seconds if self.roller.seconds else 0.0


class _Rollers(NamedTuple):
    train: Roller
    dev: Roller


def wired(
    profile: Profile, inputs: ReadsArtifacts, store: CheckpointStore, processes: Processes
) -> Run:
    """The loop of one process; all of several are wired alike."""
    config = profile.training
    policy = load_policy(inputs.warm_policy / "policy")
    hardware = Hardware.chosen(config)
    models = trainable(policy.model, config, hardware, processes)
    rollers = _rollers(profile, inputs, policy)
    by_server = profile.rollout.engine == "vllm"
    publisher: Publisher = MemoryPublisher(models.policy.model, policy, rollers)
    if by_server:
        directory = store.directory / "published"
        talking = rollers if processes.is_first else ()
        publisher = DirectoryPublisher(models.policy.model, policy, talking, directory)
    dev_tasks = read_tasks(inputs.accepted / "tasks" / "dev.jsonl")[: config.dev_questions]
    epsilon = profile.rollout.exploration.kind_epsilon
    parts = Parts(
        models=models,
        layout=layout_for(policy.model, profile, hardware, processes),
        roller=(FirstRoller if by_server else SplitRoller)(rollers.train, processes),
        pool=_task_pool(profile, inputs.curriculum),
        judge=lambda: dev_exact_match(rollers.dev, dev_tasks),
        publisher=publisher,
        kind_choice=kind_choice(rollers.train.rendering, epsilon),
    )
    return Run(policy, RlLoop(profile, parts, store), rollers.train)


def _rollers(profile: Profile, inputs: ReadsArtifacts, policy: Policy) -> _Rollers:
    train_search = SearchTool.open(inputs.knowledge, "train", profile.search)
    dev_search = SearchTool.open(inputs.knowledge, "dev", profile.search)
    exploration = profile.rollout.exploration
    if profile.rollout.engine == "vllm":
        policy_dir = inputs.warm_policy / "policy"
        return _Rollers(
            Roller.open(policy_dir, train_search, profile, exploration=exploration),
            Roller.open(policy_dir, dev_search, profile),
        )
    return _Rollers(
        Roller.local(policy, train_search, profile, exploration=exploration),
        Roller.local(policy, dev_search, profile),
    )


def _task_pool(profile: Profile, curriculum: Path) -> TaskPool:
    """The pool as the filter left it: every candidate with its measured pass rate."""
    pool = TaskPool(read_tasks(curriculum / "tasks.jsonl"), profile.curriculum)
    for row in pq.read_table(curriculum / "pass_rates.parquet").to_pylist():
        pool.observe(row["task_id"], attempts=row["attempts"], successes=row["successes"])
    pool.refresh()
    return pool

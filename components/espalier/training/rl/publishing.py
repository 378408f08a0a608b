"""Publishes weights, so that rollers sample from what has been trained so far."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedModel

from espalier.policy.hardware import copy_weights
from espalier.policy.loading import Policy, save_policy
from espalier.policy.lora import save_adapter
from espalier.records.adapter import ADAPTER_FOLDER
from espalier.rollout.roller import Roller
from espalier.training.checkpoint import cloned_weights
from espalier.training.rl.asynchronous import RolloutWorker


class Publisher(Protocol):
    """Passes the trained weights to the rollers."""

    def publish(self, version: int) -> None:
        """Let the rollers sample from the current weights, under this version."""
        ...


class MemoryPublisher:
    """Publishes to rollers that sample in this process, from `policy` in memory."""

    def __init__(self, trained: PreTrainedModel, policy: Policy, rollers: Sequence[Roller]) -> None:
        self._trained = trained
        self._policy = policy
        self._rollers = rollers

    def publish(self, version: int) -> None:
        """Set the version: the rollers read the trained weights in place."""
        copy_weights(self._trained, self._policy.model)
        for roller in self._rollers:
            roller.policy_version = version


class WorkerPublisher:
    """Publishes to a worker thread, and to rollers in the learner's thread."""

    def __init__(
        self, local: MemoryPublisher, policy: Policy, worker: RolloutWorker, *, every: int = 1
    ) -> None:
        """Give the worker the first weights, and those of every `every`-th version."""
        self._local = local
        self._policy = policy
        self._worker = worker
        self._every = every

    def publish(self, version: int) -> None:
        """Publish a copy to the worker, which later updates do not change."""
        self._local.publish(version)
        if self._worker.version is None or version % self._every == 0:
            self._worker.publish(version, cloned_weights(self._policy.model))


class DirectoryPublisher:
    """Publishes to a server, which reads weights from a directory shared with this process."""

    def __init__(
        self,
        trained: PreTrainedModel,
        policy: Policy,
        rollers: Sequence[Roller],
        directory: Path,
        *,
        adapter_alone: bool = False,
    ) -> None:
        """Publish to `rollers` by directories in `directory`.

        Args:
            trained: the model that is trained.
            policy: the policy in memory, which gets its weights.
            rollers: rollers of this process over the servers; none where another process has them.
            directory: folder for one directory a version, which the servers see too.
            adapter_alone: the servers have the base model, and read the adapter only.
        """
        self._trained = trained
        self._policy = policy
        self._rollers = rollers
        self._directory = directory
        self._adapter_alone = adapter_alone

    def publish(self, version: int) -> None:
        """Write and load the version's directory; the former version's is removed."""
        copy_weights(self._trained, self._policy.model)
        if not self._rollers:  # another process sends requests to the server
            return
        current = self._directory / f"version-{version}"
        if self._adapter_alone:
            assert self._policy.base is not None, "the profile has policy.lora"
            save_adapter(self._policy.model, current / ADAPTER_FOLDER, self._policy.base)
        else:
            save_policy(self._policy, current)
        for roller in self._rollers:
            roller.load_weights(current, version)
        for former in self._directory.glob("version-*"):
            if former != current:
                shutil.rmtree(former)

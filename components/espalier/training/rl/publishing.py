"""Publishes weights, so that rollers sample from what has been trained so far."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from transformers import PreTrainedModel

from espalier.policy.hardware import copy_weights
from espalier.policy.loading import Policy, save_policy
from espalier.policy.lora import save_adapter
from espalier.records import tree_digest
from espalier.records.adapter import ADAPTER_FOLDER
from espalier.rollout.roller import Roller
from espalier.training.rl.asynchronous import GroupWorker

W = TypeVar("W")


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


class WorkerPublisher(Generic[W]):
    """Publishes to a worker, and to rollers in the learner's thread."""

    def __init__(
        self,
        local: Publisher,
        snapshot: Callable[[int], W],
        worker: GroupWorker[W],
        *,
        every: int = 1,
    ) -> None:
        """Give the worker the first weights, and those of every `every`-th version.

        Args:
            local: passes the weights on in the learner's thread.
            snapshot: returns what the worker loads of a version; later updates do not change it.
            worker: samples from the weights.
            every: optimizer steps between two versions for the worker.
        """
        self._local = local
        self._snapshot = snapshot
        self._worker = worker
        self._every = every
        self._newest: int | None = None

    def publish(self, version: int) -> None:
        """Publish a copy to the worker, if this version is one of those that it gets.

        A version that is not newer is that of a run which went back to earlier weights. The worker
        always gets it: what it samples from has been left.
        """
        self._local.publish(version)
        is_newer = self._newest is None or version > self._newest
        self._newest = version
        if self._worker.version is None or not is_newer or version % self._every == 0:
            self._worker.publish(version, self._snapshot(version))

    def catch_up(self) -> None:
        """Publish the newest version to the worker also between two of `every`."""
        if self._newest is not None and self._newest != self._worker.version:
            self._worker.publish(self._newest, self._snapshot(self._newest))


class PolicyDirectories:
    """One directory a version, in a folder that servers see too."""

    def __init__(
        self, policy: Policy, folder: Path, *, adapter_alone: bool = False, kept: int = 0
    ) -> None:
        """Write the versions of `policy` into `folder`.

        Args:
            policy: the policy in memory.
            folder: folder of the directories.
            adapter_alone: the servers have the base model, and read the adapter only.
            kept: number of directories that stay beside the newest one that was loaded. A server
                reads an adapter again that it has put out of its memory, as long as requests of it
                run.
        """
        self._policy = policy
        self._folder = folder
        self._adapter_alone = adapter_alone
        self._kept = kept
        self._written: list[Path] = []

    def write(self, version: int) -> Path:
        """Write the policy's weights as they are now, unless this version's directory has them.

        A run that returns to its best weights publishes others under a version that it has used.
        """
        if not self._written:  # a run that was killed may have left some
            for left in self._folder.glob("version-*"):
                shutil.rmtree(left)
        named = f"version-{version}"
        former = [path for path in self._written if path.stem == named]
        names = (named, *(f"{named}.{number}" for number in range(1, len(former) + 1)))
        current = next(path for name in names if (path := self._folder / name) not in former)
        self._save(current)
        for path in former:
            if tree_digest(path) == tree_digest(current):  # the best weights, published again
                shutil.rmtree(current)
                self._written.remove(path)
                current = path
                break
        self._written.append(current)
        return current

    def _save(self, directory: Path) -> None:
        if self._adapter_alone:
            assert self._policy.base is not None, "the profile has policy.lora"
            save_adapter(self._policy.model, directory / ADAPTER_FOLDER, self._policy.base)
        else:
            save_policy(self._policy, directory)

    def remove_former(self, current: Path) -> None:
        """Remove the directories that were written before this one, which has been loaded."""
        former = self._written[: max(0, self._written.index(current) - self._kept)]
        for path in former:
            self._written.remove(path)
            with suppress(FileNotFoundError):  # moved away, and needed by nobody
                shutil.rmtree(path)


class DirectoryPublisher:
    """Publishes to servers, which read weights from directories shared with this process."""

    def __init__(
        self,
        local: Publisher,
        rollers: Sequence[Roller],
        directories: PolicyDirectories,
    ) -> None:
        """Publish to `rollers` by directories.

        Args:
            local: gives the policy in memory the trained weights.
            rollers: a roller of this process over each pool of servers; none where another process
                has them.
            directories: those of the policy in memory.
        """
        self._local = local
        self._rollers = rollers
        self._directories = directories

    def publish(self, version: int) -> None:
        """Write and load the version's directory; the former version's is removed."""
        self._local.publish(version)
        if not self._rollers:  # another process sends requests to the servers
            return
        current = self._directories.write(version)
        for roller in self._rollers:
            roller.load_weights(current, version)
        self._directories.remove_former(current)

"""Copies of policies in a folder that vLLM servers see too: `rollout.vllm.shared_dir`.

The steps of Kubeflow have folders of their own, which no server sees. A volume that steps and
servers mount under one path holds

    base                the base policy, on which servers start; `prepare_policy` leaves it
    policy-DIGEST       what servers load: the policies, or adapters, of the latest exchanges

Whoever changes it holds its lock, and copies and deletes under names that nobody looks for, so that
a kill leaves no part of a policy. The folder belongs to one run at a time, as its servers do.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from espalier.config import Profile
from espalier.records import EngineError, tree_digest

_BASE = "base"
_UNSEEN = ".unseen-"
"""Prefix of the names of folders that are being copied or deleted."""
_KEPT = 4
"""Copies that stay: a server that was restarted reads the latest, and a run ahead a few before."""


def share_base(policy_dir: Path, profile: Profile) -> None:
    """Put the base policy into the shared folder of a profile with servers, if it has one.

    Raises:
        EngineError: the folder cannot be used; or it has another base, on which servers may have
            started that are to get adapters of this one.
    """
    vllm = profile.rollout.vllm
    if profile.rollout.engine != "vllm" or vllm.shared_dir is None:
        return
    base = vllm.shared_dir / _BASE
    with _alone(vllm.shared_dir):
        if base.is_dir():
            if tree_digest(base) == tree_digest(policy_dir):
                return
            if vllm.exchange == "adapter":
                raise EngineError(
                    f"{base}: is not the base policy of this run, and servers that have started on "
                    "it would add this run's adapters to other weights. End the servers, remove "
                    "the folder, run the step again, and start them"
                )
            _delete(base)
        _copy(policy_dir, base)


def share(policy_dir: Path, shared_dir: Path) -> Path:
    """Copy a policy into the shared folder, unless it has a copy, and remove the oldest copies.

    Args:
        policy_dir: policy directory, which may hold an adapter alone.
        shared_dir: folder that the servers see under the same path.

    Returns:
        The copy.

    Raises:
        EngineError: the folder cannot be used.
    """
    copy = shared_dir / f"policy-{tree_digest(policy_dir)[:16]}"
    with _alone(shared_dir):
        if not copy.is_dir():
            _copy(policy_dir, copy)
        os.utime(copy)
        by_age = sorted(shared_dir.glob("policy-*"), key=lambda path: path.stat().st_mtime_ns)
        for old in by_age[:-_KEPT]:
            _delete(old)
    return copy


@contextmanager
def _alone(shared_dir: Path) -> Generator[None]:
    """Hold the folder's lock within the block, and remove first what killed processes have left."""
    if not shared_dir.is_dir():
        raise EngineError(
            f"rollout.vllm.shared_dir = {shared_dir}: no such folder. Mount the servers' volume "
            "there; steps of Kubeflow have kubernetes.workspace_claim at /workspace"
        )
    try:
        with (shared_dir / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in shared_dir.glob(f"{_UNSEEN}*"):
                shutil.rmtree(left)
            yield
    except OSError as error:
        raise EngineError(
            f"rollout.vllm.shared_dir = {shared_dir}: {error}; user {os.getuid()} has to be able "
            "to write there, and it needs room for several policies"
        ) from error


def _copy(source: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=_UNSEEN, dir=target.parent) as unseen:
        copy = Path(unseen, target.name)
        shutil.copytree(source, copy, copy_function=shutil.copyfile)
        copy.rename(target)


def _delete(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=_UNSEEN, dir=folder.parent) as unseen:
        folder.rename(Path(unseen, folder.name))

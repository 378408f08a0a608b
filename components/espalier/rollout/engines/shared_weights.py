"""Copies of policies in a folder that vLLM servers see too: `rollout.vllm.shared_dir`.

The steps of Kubeflow have folders of their own, which no server sees. A volume that steps and
servers mount under one path holds

    base                the base policy, on which servers start; `prepare_policy` leaves it
    policy-DIGEST       what servers load: the policies, or adapters, of the latest exchanges
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from espalier.records import EngineError, tree_digest

_BASE = "base"
_KEPT = 4
"""Copies that stay: a server that was restarted reads the latest, and a run ahead a few before."""


def share_base(policy_dir: Path, shared_dir: Path) -> Path:
    """Put the base policy into the shared folder, in place of the former one; return the copy.

    Raises:
        EngineError: there is no shared folder.
    """
    base = _existing(shared_dir) / _BASE
    with _copy(policy_dir, shared_dir) as draft:
        shutil.rmtree(base, ignore_errors=True)
        draft.rename(base)
    return base


def share(policy_dir: Path, shared_dir: Path) -> Path:
    """Put a policy into the shared folder unless it is there, and remove old ones.

    Args:
        policy_dir: policy directory, which may hold an adapter alone.
        shared_dir: folder that the servers see under the same path.

    Returns:
        The copy.

    Raises:
        EngineError: there is no shared folder.
    """
    copy = _existing(shared_dir) / f"policy-{tree_digest(policy_dir)[:16]}"
    if not copy.is_dir():
        with _copy(policy_dir, shared_dir) as draft:
            try:
                draft.rename(copy)
            except OSError:
                if not copy.is_dir():  # or another engine of the run was as far
                    raise
    os.utime(copy)
    by_age = sorted(shared_dir.glob("policy-*"), key=lambda path: path.stat().st_mtime_ns)
    for old in by_age[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)  # another engine may do the same
    return copy


def _existing(shared_dir: Path) -> Path:
    if not shared_dir.is_dir():
        raise EngineError(
            f"rollout.vllm.shared_dir = {shared_dir}: no such folder. Mount the servers' volume "
            "there; a step of Kubeflow has kubernetes.workspace_claim at /workspace"
        )
    return shared_dir


@contextmanager
def _copy(source: Path, shared_dir: Path) -> Generator[Path]:
    """Copy a folder, under a name that nobody looks for; the block gives it another."""
    with tempfile.TemporaryDirectory(prefix=".copy-", dir=shared_dir) as folder:
        yield Path(shutil.copytree(source, Path(folder, "policy"), copy_function=shutil.copyfile))

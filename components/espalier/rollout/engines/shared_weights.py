"""Copies of policies in a folder that vLLM servers see too: `rollout.vllm.shared_dir`.

The steps of Kubeflow have folders of their own, which no server sees. A volume that steps and
servers mount under one path holds

    base                the base policy, on which servers start; `prepare_policy` leaves it
    policy-DIGEST       what servers load: the policies, or adapters, of the latest exchanges
"""

from __future__ import annotations

import os
import shutil
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
    return _copied(policy_dir, _existing(shared_dir) / _BASE)


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
    if copy.is_dir():
        os.utime(copy)
    else:
        _copied(policy_dir, copy)
    by_age = sorted(shared_dir.glob("policy-*"), key=lambda path: path.stat().st_mtime_ns)
    for old in by_age[:-_KEPT]:
        shutil.rmtree(old)
    return copy


def _existing(shared_dir: Path) -> Path:
    if not shared_dir.is_dir():
        raise EngineError(
            f"rollout.vllm.shared_dir = {shared_dir}: no such folder. Mount the servers' volume "
            "there; a step of Kubeflow has kubernetes.workspace_claim at /workspace"
        )
    return shared_dir


def _copied(source: Path, target: Path) -> Path:
    """Copy a folder; nobody sees a part of it under its name."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        shutil.copytree(source, draft, copy_function=shutil.copyfile)
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)
        os.utime(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target

"""A control group for a local sandbox, if this user may create one (root, or delegation).

The group counts memory that no process is charged for (page tables, socket and pipe buffers, files
in memory), limits the number of processes, and gives a sandbox with many busy processes the CPU
weight of one. Without a group, the limits per process and by sampling remain.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from espalier.sandbox.protocol import Limits

_ROOT = Path("/sys/fs/cgroup")
_NEEDED = frozenset({"memory", "pids"})
_SERVER_BYTES = 384 * 2**20
"""Memory of sandboxd, its spawners and what they import, and of one large snapshot."""
_SERVER_PROCESSES = 24
_PREFIX = "espalier-sandbox-"
_ENTER = 'for g in $GROUPS_TO_ENTER; do echo 0 > "$g/cgroup.procs" || exit 70; done; exec "$@"'


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The folders of one sandbox's group: one under cgroup v2, one per controller under v1."""

    folders: tuple[Path, ...]

    def entering(self, command: list[str]) -> tuple[list[str], Mapping[str, str]]:
        """Return a command that enters the group and runs `command`, and its variables."""
        groups = " ".join(map(str, self.folders))
        return ["/bin/sh", "-c", _ENTER, "sh", *command], {"GROUPS_TO_ENTER": groups}

    def remove(self) -> None:
        """Remove the folders once no process is left in them; keep folders in use."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def control_group(limits: Limits) -> ControlGroup | None:
    """Create a group with the limits of a sandbox; None if this user may not."""
    memory_bytes = limits.memory_bytes + 2 * limits.disk_bytes + _SERVER_BYTES
    processes = limits.processes + _SERVER_PROCESSES
    wanted = _version_2(memory_bytes, processes) or _version_1(memory_bytes, processes)
    made: list[Path] = []
    try:
        for folder, settings in wanted.items():
            _remove_stale(folder.parent)
            folder.mkdir()
            made.append(folder)
            for name, value in settings.items():
                (folder / name).write_text(value, encoding="ascii")
    except OSError:
        ControlGroup(tuple(made)).remove()
        return None
    return ControlGroup(tuple(made)) if made else None


def _version_2(memory_bytes: int, processes: int) -> Mapping[Path, Mapping[str, str]]:
    own = _own_groups().get("")
    if own is None or not (_ROOT / "cgroup.controllers").exists():
        return {}
    parent = _ROOT / own
    for candidate in (parent, parent.parent):  # the parent, if our own group holds processes
        try:
            enabled = (candidate / "cgroup.subtree_control").read_text(encoding="ascii").split()
        except OSError:
            continue
        if _NEEDED.issubset(enabled) and os.access(candidate, os.W_OK):
            settings = {"memory.max": str(memory_bytes), "pids.max": str(processes)}
            return {candidate / _name(): settings}
    return {}


def _version_1(memory_bytes: int, processes: int) -> Mapping[Path, Mapping[str, str]]:
    own, name = _own_groups(), _name()
    settings = {
        "memory": {"memory.limit_in_bytes": str(memory_bytes)},
        "pids": {"pids.max": str(processes)},
        "cpu": {},
    }
    if not own.keys() >= _NEEDED:
        return {}
    return {
        _ROOT / controller / own[controller] / name: values
        for controller, values in settings.items()
        if controller in own and (_ROOT / controller / "tasks").exists()
    }


def _own_groups() -> Mapping[str, str]:
    """Return controller -> this process's group, relative to its mount; key "" is cgroup v2's."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                found[controller] = path.lstrip("/")
    return found


def _name() -> str:
    return f"{_PREFIX}{os.getpid()}-{secrets.token_hex(6)}"


def _remove_stale(parent: Path) -> None:
    """Remove groups whose creator was killed; groups in use stay."""
    for folder in parent.glob(f"{_PREFIX}*"):
        maker = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", maker).exists():
            ControlGroup((folder,)).remove()

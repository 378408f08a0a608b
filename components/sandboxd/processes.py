"""The sandbox's processes, as /proc shows them at one moment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STATUS_FIELDS = ("PPid", "Threads", "RssAnon", "RssShmem", "VmData", "VmRSS")
_KIB = 1024
_ALL_USERS = "4294967295"
"""How many uid_map shows where there is no user namespace but the machine's."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    Attributes:
        held_bytes: memory without files: its own and what it shares by fork or on purpose.
        data_bytes: what RLIMIT_DATA counts.
    """

    pid: int
    parent: int
    threads: int
    held_bytes: int
    data_bytes: int


def snapshot() -> dict[int, Process]:
    """All processes of this namespace that have not ended, by number; some may end meanwhile."""
    found = (_process(int(name)) for name in os.listdir(_PROC) if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def descendants(of: int, processes: Mapping[int, Process]) -> list[Process]:
    """Children, their children, and so on."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found, waiting = [], [of]
    while waiting:
        below = children.pop(waiting.pop(), [])
        found += below
        waiting += [process.pid for process in below]
    return found


def has_own_users() -> bool:
    """Whether the kernel counts processes for this sandbox alone, not with others of its user."""
    return _ALL_USERS not in (_PROC / "self/uid_map").read_text(encoding="ascii").split()


def own_data_bytes() -> int:
    """What RLIMIT_DATA counts of this process."""
    process = _process(os.getpid())
    return process.data_bytes if process else 0


def proportional_bytes(process: Process) -> int:
    """Its share of memory without files: a page that three processes hold counts a third.

    Slower than `held_bytes`. A process that hid its memory counts in full.
    """
    try:
        text = (_PROC / str(process.pid) / "smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return process.held_bytes
    shares = dict(line.split(":", 1) for line in text.splitlines()[1:] if ":" in line)
    if "Pss_Anon" not in shares:
        return process.held_bytes
    return _KIB * sum(int(shares[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem"))


def _process(pid: int) -> Process | None:
    try:
        text = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    named = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    if named.get("State", "Z").split()[0] in "ZX":
        return None
    values = {name: int(named.get(name, "0").split()[0]) for name in _STATUS_FIELDS}
    held = values["RssAnon"] + values["RssShmem"]
    if "RssAnon" not in named:  # gVisor does not tell memory apart from files
        held = min(values["VmRSS"], values["VmData"])
    return Process(
        pid=pid,
        parent=values["PPid"],
        threads=values["Threads"],
        held_bytes=_KIB * held,
        data_bytes=_KIB * values["VmData"],
    )

"""The sandbox's processes, as /proc shows them at one moment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STATUS_FIELDS = ("PPid", "Threads", "RssAnon", "RssShmem", "VmData", "VmRSS")
_AFTER_NAME = "\nState:"
"""gVisor does not escape a name, and a program chooses its own: all after it is the kernel's."""
_KIB = 1024
_ALL_USERS = "4294967295"
"""How many uid_map shows where there is no user namespace but the machine's."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    Attributes:
        held_bytes: memory without files: its own and what it shares by fork or on purpose.
    """

    pid: int
    parent: int
    threads: int
    held_bytes: int


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


def own_bytes(field: str) -> int:
    """A size of this process: VmData is what RLIMIT_DATA counts, VmSize what RLIMIT_AS does."""
    return _KIB * _number((_status("self") or {}).get(field, "0"))


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
    named = _status(str(pid))
    if named is None or named["State"].split()[0] in "ZX":
        return None
    values = {name: _number(named.get(name, "0")) for name in _STATUS_FIELDS}
    held = values["RssAnon"] + values["RssShmem"]
    if "RssAnon" not in named:  # gVisor does not tell memory apart from files
        held = min(values["VmRSS"], values["VmData"])
    return Process(
        pid=pid,
        parent=values["PPid"],
        threads=values["Threads"],
        held_bytes=_KIB * held,
    )


def _status(process: str) -> dict[str, str] | None:
    try:
        text = (_PROC / process / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    _, after_name, told = text.rpartition(_AFTER_NAME)
    if not after_name:
        return None
    lines = f"State:{told}".splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _number(told: str) -> int:
    return int(told.split()[0])

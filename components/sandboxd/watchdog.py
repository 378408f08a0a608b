"""Limits that are enforced by sampling, because the kernel has none.

They limit memory (of all processes of a run together, with page tables, mappings and socket
buffers), files, file locks, terminals, and the processor time of a process that lifted its own
limit.

A run can exceed them between two samples. A sandbox's cgroup, where there is one, limits memory,
too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sandboxd import sockets
from sandboxd.kernel import (
    Process,
    all_processes,
    cpu_seconds,
    descendants,
    number_of_locks,
    proportional_bytes,
    unseen_bytes,
)
from sandboxd.run import Run
from sandboxd.runs import Runs
from sandboxd.wire import Killer, Limits

_BUSY_S = 0.1
_IDLE_S = 1.0
_MOST_FILES = 65_536
"""Most files per writable folder; an empty file takes a kilobyte of kernel memory."""
_FRESH_FILES = 4
"""Most files in a file system that is new for this sandbox; a shared disk has more."""
_MOST_LOCKS = 4096
"""Most file locks; each takes kernel memory, and nothing else limits them."""
_LOCKS_AFTER_CPU_S = 0.1
"""Processor time after which locks are counted; in it, runs can make about 100,000 locks, which
take 20 MB of kernel memory."""
_MOUNTS = Path("/proc/self/mounts")
_TERMINALS = Path("/dev/pts")
_MOST_TERMINALS = 16
"""Most terminals of a sandbox; the machine has 4,096 for all sandboxes."""
_SPARE_CPU_S = 1.5
"""Tolerance above RLIMIT_CPU, which ends a process that did not lift it."""
_SPARE_PROCESSES = 8
"""Tolerance above the process limit, which the kernel enforces where it can."""


async def watch(runs: Runs, limits: Limits, folders: Iterable[Path]) -> None:
    """Kill runs that exceed their limits, without end."""
    folders, locks = tuple(folders), Locks()
    while True:
        await _pause(runs)
        if runs.active:
            processes = all_processes()
            for run, cause in offences(runs.active, processes, limits):
                runs.kill(run, cause)
            members = [p for run in runs.active for p in descendants(run.runner_pid, processes)]
            cause = _common_offence(folders, members, limits)
            if locks.are_too_many(members):
                cause = "files"
            if cause is not None:
                for run in runs.active:
                    runs.kill(run, cause)


def countable(folders: Iterable[Path]) -> list[Path]:
    """Folders that are file systems of their own, so that all files in them are this sandbox's.

    Call it before any run: gVisor reports a memory-backed folder like one on a disk (9p), so that
    only the number of files distinguishes them.
    """
    mounts = _MOUNTS.read_text(encoding="utf-8").splitlines()
    kinds = {point: kind for _, point, kind, *_ in map(str.split, mounts)}
    return [
        folder
        for folder in folders
        if (kind := kinds.get(str(folder)))
        and (kind == "tmpfs" or _count_files(folder) <= _FRESH_FILES)
    ]


def _common_offence(
    folders: Iterable[Path], members: Sequence[Process], limits: Limits
) -> Killer | None:
    """Resource that all runs together use too much of, where usage by run is unknown."""
    if any(_count_files(folder) > _MOST_FILES for folder in folders):
        return "files"
    if _count_terminals() > _MOST_TERMINALS:
        return "terminals"
    buffered = sockets.held_bytes()
    if not buffered:
        return None
    if buffered + sum(p.held_bytes + p.table_bytes for p in members) > limits.memory_bytes:
        held = sum(sum(proportional_bytes(p)) + p.table_bytes for p in members)
        return "memory" if buffered + held > limits.memory_bytes else None
    return None


class Locks:
    """Counter of the file locks of all runs, which counts in a thread after enough processor time.

    Reading the kernel's list waits for all processors (a grace period of RCU, about 10 ms), which
    is too long for every sample and for sandboxd's event loop.
    """

    def __init__(self) -> None:
        self._spent_s: dict[int, float] = {}
        self._counting: asyncio.Future[int] | None = None

    def are_too_many(self, members: Iterable[Process]) -> bool:
        """Whether the last count was too high; starts the next count if it is due."""
        counted = 0
        if self._counting is not None and self._counting.done():
            counted, self._counting = self._counting.result(), None
        spent_s = {process.pid: cpu_seconds(process.pid) for process in members}
        since_s = sum(max(0.0, s - self._spent_s.get(pid, 0.0)) for pid, s in spent_s.items())
        if self._counting is None and since_s > _LOCKS_AFTER_CPU_S:
            loop = asyncio.get_running_loop()
            self._counting = loop.run_in_executor(None, number_of_locks, _MOST_LOCKS + 1)
            self._spent_s = spent_s
        return counted > _MOST_LOCKS


def _count_terminals() -> int:
    try:
        return sum(name.isdigit() for name in os.listdir(_TERMINALS))
    except OSError:
        return 0


async def _pause(runs: Runs) -> None:
    if any(run.readers for run in runs.active):
        return await asyncio.sleep(_BUSY_S)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_IDLE_S):
            await runs.began.wait()
    runs.began.clear()


def offences(
    runs: Iterable[Run], processes: Mapping[int, Process], limits: Limits
) -> list[tuple[Run, Killer]]:
    """Runs over their own limits, and the largest run if all together are over the sandbox's.

    A run is measured from the start of its job. Before that its processes are copies of the
    runner, which hides its memory.
    """
    below = {run: descendants(run.runner_pid, processes) for run in runs if run.job_pid}
    found: list[tuple[Run, Killer]] = []
    threads = {run: sum(p.threads for p in members) for run, members in below.items()}
    if threads and sum(threads.values()) > limits.processes + _SPARE_PROCESSES:
        found.append((max(threads, key=lambda run: threads[run]), "processes"))
    for run, members in below.items():
        if _is_over_its_time(run, members):
            found.append((run, "cpu_time"))
    held = {run: _held_bytes(members, run.limits.memory_bytes) for run, members in below.items()}
    over = [run for run, size in held.items() if size > run.limits.memory_bytes]
    if not over and held and sum(held.values()) > limits.memory_bytes:
        over = [max(held, key=lambda run: held[run])]
    return found + [(run, "memory") for run in over]


def _held_bytes(members: Iterable[Process], limit: int) -> int:
    """Memory of a run, bytes; shared pages are counted exactly only if the sum is above `limit`."""
    members = tuple(members)
    held = sum(process.held_bytes for process in members)
    tables = sum(process.table_bytes for process in members)
    entries = unseen = 0
    if sum(process.address_bytes for process in members) > limit:
        entries, unseen = unseen_bytes(members, limit)
    if held + tables + entries + unseen <= limit:
        return held + tables + entries + unseen
    if tables + entries + unseen > limit:  # no exact count, which is slow with many mappings
        return tables + entries + unseen
    shares = [proportional_bytes(process) for process in members]
    private, shared = sum(own for own, _ in shares), sum(common for _, common in shares)
    return tables + entries + private + max(shared, unseen)


def _is_over_its_time(run: Run, members: Iterable[Process]) -> bool:
    """Whether a process used more processor time than RLIMIT_CPU allows."""
    most_s = run.limits.cpu_s + _SPARE_CPU_S
    if run.elapsed_s * (os.cpu_count() or 1) < most_s:
        return False
    return any(
        cpu_seconds(process.pid) - (run.cpu_before_s if process.pid == run.job_pid else 0.0)
        > most_s
        for process in members
    )


def _count_files(folder: Path) -> int:
    sizes = os.statvfs(folder)
    return sizes.f_files - sizes.f_ffree

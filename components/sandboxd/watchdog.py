"""Limits by sampling where the kernel has none: memory of a run's processes together, and files.

A run can exceed them between two samples. Under podman and Kubernetes the sandbox's cgroup also
limits memory; under bubblewrap only each process has a limit of the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from sandboxd.kernel import Process, all_processes, descendants, proportional_bytes
from sandboxd.run import Run
from sandboxd.runs import Runs
from sandboxd.wire import Killer, Limits

_BUSY_S = 0.1
_IDLE_S = 1.0
_MOST_FILES = 65_536
"""Per writable folder: an empty file costs a kilobyte of kernel memory."""
_FRESH_FILES = 4
"""Most files in a fresh file system of this sandbox; a shared disk has more."""
_MOUNTS = Path("/proc/self/mounts")
_SPARE_PROCESSES = 8
"""Tolerance above the process limit, which the kernel enforces where it can."""


async def watch(runs: Runs, limits: Limits, folders: Iterable[Path]) -> None:
    """Kill runs that exceed their limits; never returns."""
    folders = tuple(folders)
    while True:
        await _pause(runs)
        if runs.active:
            for run, cause in offences(runs.active, all_processes(), limits):
                runs.kill(run, cause)
            if any(_count_files(folder) > _MOST_FILES for folder in folders):
                for run in runs.active:
                    runs.kill(run, "files")


def countable(folders: Iterable[Path]) -> list[Path]:
    """Folders that are their own file system, so that all files in it are this sandbox's.

    Call it before any run: gVisor reports a memory-backed folder like one on a disk (9p), and only
    the number of files tells them apart.
    """
    mounts = _MOUNTS.read_text(encoding="utf-8").splitlines()
    kinds = {point: kind for _, point, kind, *_ in map(str.split, mounts)}
    return [
        folder
        for folder in folders
        if (kind := kinds.get(str(folder)))
        and (kind == "tmpfs" or _count_files(folder) <= _FRESH_FILES)
    ]


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
    """Runs over their own limits, and the largest run if all together exceed the sandbox's."""
    below = {run: descendants(run.runner_pid, processes) for run in runs if run.runner_pid}
    found: list[tuple[Run, Killer]] = []
    threads = {run: sum(p.threads for p in members) for run, members in below.items()}
    if threads and sum(threads.values()) > limits.processes + _SPARE_PROCESSES:
        found.append((max(threads, key=lambda run: threads[run]), "processes"))
    held = {run: _held_bytes(members, run.limits.memory_bytes) for run, members in below.items()}
    over = [run for run, size in held.items() if size > run.limits.memory_bytes]
    if not over and held and sum(held.values()) > limits.memory_bytes:
        over = [max(held, key=lambda run: held[run])]
    return found + [(run, "memory") for run in over]


def _held_bytes(members: Iterable[Process], limit: int) -> int:
    """Memory of a run; shared pages are counted exactly only if the sum exceeds the limit."""
    members = tuple(members)
    held = sum(process.held_bytes for process in members)
    return held if held <= limit else sum(proportional_bytes(process) for process in members)


def _count_files(folder: Path) -> int:
    sizes = os.statvfs(folder)
    return sizes.f_files - sizes.f_ffree

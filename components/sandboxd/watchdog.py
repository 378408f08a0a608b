"""What no limit of the kernel covers here: memory of a run's processes together, and files.

Sampled, so that a run can be over its limit for a moment. Under podman and Kubernetes the kernel's
memory limit of the whole sandbox stands behind it; alone under bubblewrap each process still has
its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from sandboxd.processes import Process, descendants, proportional_bytes, snapshot
from sandboxd.run import Run
from sandboxd.runs import Runs
from sandboxd.wire import Killer, Limits

_BUSY_S = 0.1
_IDLE_S = 1.0
_MOST_FILES = 65_536
"""In one writable folder: an empty file costs a kilobyte of the machine's own memory."""
_FRESH_FILES = 4
"""At most in a file system that was made for this sandbox; on a disk its pod's folders are more."""
_MOUNTS = Path("/proc/self/mounts")
_SPARE_PROCESSES = 8
"""Above the limit of processes, which the kernel keeps where it can."""


async def watch(runs: Runs, limits: Limits, folders: Iterable[Path]) -> None:
    """Kill runs that are over their limits, for ever."""
    folders = tuple(folders)
    while True:
        await _pause(runs)
        if runs.active:
            for run, cause in offences(runs.active, snapshot(), limits):
                runs.kill(run, cause)
            if any(_count_files(folder) > _MOST_FILES for folder in folders):
                for run in runs.active:
                    runs.kill(run, "files")


def countable(folders: Iterable[Path]) -> list[Path]:
    """Those that are a file system of their own, so that the files in it are this sandbox's.

    Asked before anything runs: gVisor shows one in memory as it shows a folder of a disk (9p).
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
    """Runs over their own limits; and the largest, where all together are over the sandbox's."""
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
    """Memory of a run; exact only where pages shared by fork could make the difference."""
    members = tuple(members)
    held = sum(process.held_bytes for process in members)
    return held if held <= limit else sum(proportional_bytes(process) for process in members)


def _count_files(folder: Path) -> int:
    sizes = os.statvfs(folder)
    return sizes.f_files - sizes.f_ffree

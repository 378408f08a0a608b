"""Which runs are over their limits, from a picture of the processes."""

import asyncio
import os
from pathlib import Path

import pytest

from sandboxd import watchdog
from sandboxd.kernel import Process
from sandboxd.watchdog import offences
from sandboxd.wire import Limits

MIB = 2**20
LIMITS = Limits(memory_bytes=100 * MIB, processes=10)


class _Run:
    def __init__(self, runner_pid, memory_bytes=100 * MIB):
        self.runner_pid = runner_pid
        self.limits = Limits(memory_bytes=memory_bytes)
        self.readers = 1
        self.elapsed_s = 0.0
        self.job_pid = runner_pid and runner_pid + 1
        self.cpu_before_s = 0.0


def _processes(*rows):
    """(pid, parent, threads, MiB); numbers that no machine has, so that nothing else is read."""
    return {
        pid: Process(pid, parent, threads, held * MIB, 0) for pid, parent, threads, held in rows
    }


RUNNER, OTHER = 2**30, 2**30 + 100


def test_memory_is_that_of_all_descendants_together():
    run = _Run(RUNNER)
    family = _processes(
        (RUNNER, 1, 1, 500), (RUNNER + 1, RUNNER, 1, 60), (RUNNER + 2, RUNNER + 1, 1, 60)
    )
    assert offences([run], family, LIMITS) == [(run, "memory")]
    assert offences([_Run(OTHER)], family, LIMITS) == []


def test_page_tables_count_as_memory():
    run = _Run(RUNNER)
    family = {RUNNER + 1: Process(RUNNER + 1, RUNNER, 1, 60 * MIB, 60 * MIB)}
    assert offences([run], family, LIMITS) == [(run, "memory")]


def test_a_process_that_lifted_its_time_limit_is_over_it():
    run = _Run(os.getppid())
    run.elapsed_s = 10.0
    family = {os.getpid(): Process(os.getpid(), os.getppid(), 1, 0, 0)}
    run.limits = Limits(cpu_s=3600.0)
    assert offences([run], family, LIMITS) == []
    run.cpu_before_s, run.job_pid = -3600.0, os.getpid()
    run.limits = Limits(cpu_s=1.0)
    assert offences([run], family, LIMITS) == [(run, "cpu_time")]


def test_a_run_has_its_own_limit():
    small, large = _Run(RUNNER, 10 * MIB), _Run(OTHER)
    family = _processes((RUNNER + 1, RUNNER, 1, 20), (OTHER + 1, OTHER, 1, 70))
    assert offences([small, large], family, LIMITS) == [(small, "memory")]


def test_the_largest_run_is_killed_over_a_common_limit():
    small, large = _Run(RUNNER), _Run(OTHER)
    family = _processes((RUNNER + 1, RUNNER, 1, 50), (OTHER + 1, OTHER, 1, 70))
    assert offences([small, large], family, LIMITS) == [(large, "memory")]


def test_threads_count_as_processes():
    run = _Run(RUNNER)
    family = _processes((RUNNER + 1, RUNNER, 30, 1))
    assert offences([run], family, LIMITS) == [(run, "processes")]


def test_a_fork_that_is_no_job_yet_is_not_measured():
    run = _Run(RUNNER)
    family = _processes((RUNNER + 1, RUNNER, 1, 200))
    run.job_pid = 0
    assert offences([run], family, LIMITS) == []
    run.job_pid = RUNNER + 1
    assert offences([run], family, LIMITS) == [(run, "memory")]


def test_a_run_without_runner_is_not_over_its_limit():
    assert offences([_Run(0)], _processes((5, 0, 99, 999)), LIMITS) == []


def test_locks_are_counted_when_runs_had_time_for_many(monkeypatch):
    spent_s, counts = [0.05, 0.2, 0.2, 0.25, 0.4, 0.4], [9, 10**6]
    monkeypatch.setattr(watchdog, "cpu_seconds", lambda _: spent_s.pop(0))
    monkeypatch.setattr(watchdog, "number_of_locks", lambda _: counts.pop(0))

    async def sample():
        locks, found = watchdog.Locks(), []
        while spent_s:
            found.append(locks.are_too_many(_processes((RUNNER + 1, RUNNER, 1, 1)).values()))
            await asyncio.sleep(0.05)
        return found

    assert asyncio.run(sample()) == [False] * 5 + [True]
    assert counts == []


class _Runs:
    def __init__(self):
        self.active = []
        self.began = asyncio.Event()
        self.killed = []

    def kill(self, run, cause):
        self.killed.append((run, cause))


def test_a_new_run_is_sampled_at_once(monkeypatch):
    family = _processes((RUNNER + 1, RUNNER, 1, 200))
    monkeypatch.setattr(watchdog, "all_processes", lambda: family)
    run = _Run(RUNNER)

    async def begin():
        runs = _Runs()
        watching = asyncio.create_task(watchdog.watch(runs, LIMITS, []))
        await asyncio.sleep(0)  # the watch is in its longest pause now
        runs.active.append(run)
        runs.began.set()
        async with asyncio.timeout(watchdog._IDLE_S / 2):
            while not runs.killed:
                await asyncio.sleep(0.001)
        watching.cancel()
        return runs.killed

    assert (run, "memory") in asyncio.run(begin())


@pytest.mark.parametrize(
    ("kind", "files", "counts"),
    [("tmpfs", 1, True), ("tmpfs", 9, True), ("9p", 1, True), ("9p", 900, False)],
)
def test_files_are_counted_where_they_are_this_sandboxs_own(
    monkeypatch, tmp_path, kind, files, counts
):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"none /workspace {kind} rw 0 0\nnone / {kind} ro 0 0\n", encoding="ascii")
    monkeypatch.setattr(watchdog, "_MOUNTS", mounts)
    monkeypatch.setattr(watchdog, "_count_files", lambda _: files)
    workspace = Path("/workspace")
    assert watchdog.countable([workspace, Path("/var/tmp")]) == [workspace] * counts

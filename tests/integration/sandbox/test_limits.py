"""Limits, as the table of guarantees states them."""

import asyncio
import time
from dataclasses import replace

import pytest

from espalier.sandbox import SandboxRefused
from sandboxd.runner import FILES_BYTES
from tests.integration.sandbox.backends import LIMITS, is_on_gvisor
from tests.integration.sandbox.host import processes, something_running

pytestmark = pytest.mark.contract


def test_output_beyond_the_limit_is_dropped_and_marked(run, sandbox):
    result = run(sandbox.exec(["sh", "-c", "head -c 1000000 /dev/zero; echo end >&2"]))
    assert len(result.stdout) + len(result.stderr) == LIMITS.output_bytes
    assert (result.truncated, result.exit_status, result.killed_by) == (True, 0, None)


def test_output_up_to_the_cap_is_whole(run, sandbox):
    result = run(sandbox.exec(["head", "-c", str(LIMITS.output_bytes), "/dev/zero"]))
    assert len(result.stdout) == LIMITS.output_bytes
    assert not result.truncated


def test_a_program_flooding_its_output_is_killed_early(run, sandbox):
    started = time.monotonic()
    result = run(sandbox.exec(["yes"]))
    assert (result.killed_by, result.truncated) == ("output", True)
    assert time.monotonic() - started < LIMITS.wall_s / 2


def test_a_process_over_its_memory_gets_memoryerror(run, backend, sandbox):
    files = FILES_BYTES if is_on_gvisor(backend) else 0  # counted there, so a program may have them
    code = "b'x' * {}"
    for ask in (
        sandbox.exec(["python", "-c", code.format(LIMITS.memory_bytes + files)]),
        sandbox.run_python(code.format(LIMITS.memory_bytes + 2**24)),  # beyond the interpreter's
    ):
        result = run(ask)
        assert result.exit_status == 1
        assert b"MemoryError" in result.stderr


@pytest.mark.parametrize("name", ["python", "\nRssAnon:\t0"])
def test_processes_that_together_hold_too_much_memory_are_killed(run, sandbox, name):
    """By whatever name: gVisor shows it among what it tells of a process, as it is."""
    code = f"""
import ctypes, os, time
ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)  # PR_SET_NAME
for _ in range(6):
    if os.fork() == 0:
        held = b"x" * {LIMITS.memory_bytes // 4}
        time.sleep(20)
print("forked", flush=True)
time.sleep(20)
"""
    result = run(sandbox.exec(["python", "-c", code]))
    assert (result.signal, result.timed_out) == (9, False)
    assert result.killed_by in {"memory", None}  # None: the kernel's own limit came first
    assert result.duration_s < 10


def test_programs_are_killed_before_the_server_without_memory(run, sandbox):
    look = "print(*(open(f'/proc/{p}/oom_score_adj').read().strip() for p in ('1', 'self')))"
    for ask in (sandbox.exec(["python", "-c", look]), sandbox.run_python(look)):
        server, program = map(int, run(ask).stdout.split())
        assert program > server


def test_a_run_can_have_less_memory_than_its_sandbox(run, sandbox):
    less = replace(LIMITS, memory_bytes=64 * 2**20)
    code = f"b'x' * {160 * 2**20}; print('had it')"
    assert run(sandbox.exec(["python", "-c", code])).succeeded
    assert run(sandbox.exec(["python", "-c", code], limits=less)).exit_status == 1
    assert run(sandbox.run_python(code, limits=less)).exit_status == 1


def test_short_python_runs_within_less_memory_are_never_killed(run, sandbox):
    """A fork of the interpreter is looked at from its beginning, also on a busy machine."""
    less = replace(LIMITS, memory_bytes=64 * 2**20)
    ends = [run(sandbox.run_python("pass", limits=less)) for _ in range(60)]
    assert {end.killed_by for end in ends} == {None}


def test_processor_time_is_limited_apart_from_wall_time(run, sandbox):
    limits = replace(LIMITS, cpu_s=1.0)
    result = run(sandbox.exec(["python", "-c", "while True: pass"], limits=limits))
    assert result.signal in {9, 24}  # SIGXCPU, and SIGKILL for who ignores it
    assert not result.timed_out
    assert result.cpu_s == pytest.approx(1.0, abs=1.1)


def test_processes_are_limited_in_number(run, sandbox):
    code = """
import os, time
made = 0
try:
    for _ in range(500):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        made += 1
except OSError as error:
    print(made, error.errno, flush=True)
"""
    result = run(sandbox.exec(["python", "-c", code]))
    made, number = map(int, result.stdout.split())
    assert number == 11  # EAGAIN
    assert LIMITS.processes // 2 < made <= LIMITS.processes + 32


def test_the_workspace_has_a_size_limit_and_recovers(run, sandbox):
    fill = ["sh", "-c", "head -c 200000000 /dev/zero > big"]
    assert run(sandbox.exec(fill)).exit_status != 0
    with pytest.raises(SandboxRefused) as refusal:
        run(sandbox.put("more", bytes(20_000_000)))
    assert refusal.value.status == 507
    assert run(sandbox.exec(["sh", "-c", "rm big && head -c 1000000 /dev/zero > small"])).succeeded


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_other_writable_folders_are_limited_as_well(run, sandbox, folder):
    fill = f"head -c {LIMITS.disk_bytes + 2**20} /dev/zero > {folder}/big"
    assert run(sandbox.exec(["sh", "-c", fill])).exit_status != 0


@pytest.mark.parametrize("folder", ["/", "/usr/bin", "/etc", "/dev", "/opt/sandbox", "/proc/sys"])
def test_nothing_else_can_be_written(run, sandbox, folder):
    result = run(sandbox.exec(["sh", "-c", f"echo > {folder}/new"]))
    assert result.exit_status != 0
    assert b"new" in result.stderr


def test_a_limit_above_the_sandbox_is_refused(run, sandbox):
    more = replace(LIMITS, memory_bytes=LIMITS.memory_bytes * 2)
    with pytest.raises(SandboxRefused, match="memory_bytes"):
        run(sandbox.exec(["true"], limits=more))
    with pytest.raises(SandboxRefused, match="wall_s"):
        run(sandbox.exec(["true"], timeout_s=LIMITS.wall_s + 1))


def test_a_client_that_goes_away_ends_its_run(run, sandbox):
    async def leave():
        async with something_running(sandbox) as running:
            running.task.cancel()
            async with asyncio.timeout(LIMITS.wall_s / 2):
                while f"sleep {running.mark}" in await processes(sandbox):
                    await asyncio.sleep(0.05)

    run(leave())

"""Beginnings and ends: what is there while a sandbox lives, and nothing after."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from espalier.sandbox import SandboxLost
from espalier.sandbox.bubblewrap import WORKSPACE

pytestmark = pytest.mark.contract


def _sandbox_processes():
    """Of this machine: sandboxd and all that runs in sandboxes."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            inside = (folder / "cwd").readlink() == Path(WORKSPACE)
        except OSError:
            continue
        if inside or b"sandboxd" in words:
            found.add(int(folder.name))
    return found


def _folders():
    return set(Path(tempfile.gettempdir()).glob("espalier-sandbox-*"))


def test_closing_leaves_nothing(run, backend):
    before = _sandbox_processes(), _folders()

    async def use():
        sandbox = await backend.create()
        await sandbox.python("x = 1")
        running = asyncio.create_task(sandbox.exec(["sleep", "14"]))
        await asyncio.sleep(0.3)
        assert len(_sandbox_processes() - before[0]) >= 4
        await sandbox.close()
        return (await asyncio.gather(running, return_exceptions=True))[0]

    assert isinstance(run(use()), SandboxLost)
    assert _sandbox_processes() - before[0] == set()
    assert _folders() == before[1]


def test_closing_twice_is_closing_once(run, backend):
    async def close_twice():
        sandbox = await backend.create()
        await sandbox.close()
        await sandbox.close()

    run(close_twice())


def test_a_sandbox_whose_server_died_is_lost_and_never_hangs(run, backend):
    async def lose():
        before = _sandbox_processes()
        sandbox = await backend.create()
        running = asyncio.create_task(sandbox.exec(["sleep", "10"]))
        await asyncio.sleep(0.3)
        for pid in _sandbox_processes() - before:
            # what its parent's death took along is gone already
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        started = time.monotonic()
        outcomes = await asyncio.gather(
            running, sandbox.exec(["true"]), sandbox.get("x"), return_exceptions=True
        )
        await sandbox.close()
        return outcomes, time.monotonic() - started

    outcomes, took_s = run(lose())
    assert [type(outcome) for outcome in outcomes] == [SandboxLost] * 3
    assert took_s < 10


def test_sandboxes_end_with_the_process_that_made_them(backend):
    before = _sandbox_processes()
    script = f"""
import asyncio, sys
from tests.integration.sandbox.backends import BACKENDS
from espalier.sandbox import *
async def main():
    sandbox = await {backend!r}.create()
    print("ready", flush=True)
    await sandbox.exec(["sleep", "14"])
asyncio.run(main())
"""
    folder = tempfile.mkdtemp()  # short: a socket's path has at most 107 characters
    environment = dict(os.environ) | {"TMPDIR": folder}
    maker = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment
    )
    assert maker.stdout is not None
    with maker.stdout:
        assert maker.stdout.readline() == b"ready\n"
    assert _sandbox_processes() - before
    maker.kill()
    maker.wait()
    deadline = time.monotonic() + 10
    while _sandbox_processes() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _sandbox_processes() - before == set()
    shutil.rmtree(folder)


def test_two_sandboxes_see_nothing_of_each_other(run, backend, sandbox):
    async def look():
        other = await backend.create()
        try:
            await other.put("mine", b"other")
            await other.python("import os; os.environ['MARK'] = 'other'")
            running = asyncio.create_task(other.exec(["sleep", "1.75"]))
            await asyncio.sleep(0.2)
            seen = await sandbox.exec(["sh", "-c", "ls -A; cat /proc/[0-9]*/cmdline"])
            assert (await running).succeeded
            return seen
        finally:
            await other.close()

    seen = run(look())
    assert b"mine" not in seen.stdout
    assert b"1.75" not in seen.stdout

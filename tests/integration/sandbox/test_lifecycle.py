"""Beginnings and ends: what is there while a sandbox lives, and nothing after."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from espalier.sandbox import SandboxLost
from tests.integration.sandbox.backends import ON_THIS_MACHINE
from tests.integration.sandbox.host import members, something_running

pytestmark = pytest.mark.contract


@pytest.mark.usefixtures("seen_from_here")
def test_closing_leaves_nothing(run, backend, monkeypatch):
    folder = tempfile.mkdtemp()  # short: a socket's path has at most 107 characters
    monkeypatch.setattr(tempfile, "tempdir", folder)

    async def use():
        sandbox = await backend.create()
        await sandbox.python("x = 1")
        async with something_running(sandbox) as running:
            namespace = running.namespace()
            assert len(members(namespace)) >= 6
            await sandbox.close()
            left = members(namespace)
            return left, (await asyncio.gather(running.task, return_exceptions=True))[0]

    left, outcome = run(use())
    assert left == []
    assert isinstance(outcome, SandboxLost)
    assert not outcome.by_program
    Path(folder).rmdir()  # which fails unless it is empty


def test_closing_twice_is_closing_once(run, backend):
    async def close_twice():
        sandbox = await backend.create()
        await sandbox.close()
        await sandbox.close()

    run(close_twice())


def test_a_sandbox_whose_server_died_is_lost_and_never_hangs(run, backend):
    async def lose():
        sandbox = await backend.create()
        async with something_running(sandbox) as running:
            await running.kill_server()
            started = time.monotonic()
            # First: the server of a deleted pod may answer others until its kubelet ends it.
            await asyncio.wait([running.task])
            outcomes = await asyncio.gather(
                running.task, sandbox.exec(["true"]), sandbox.get("x"), return_exceptions=True
            )
        took_s = time.monotonic() - started
        await sandbox.close()
        return outcomes, took_s

    outcomes, took_s = run(lose())
    assert [type(outcome) for outcome in outcomes] == [SandboxLost] * 3
    if backend.name in ON_THIS_MACHINE:  # of a pod, the cluster says it (tests/cluster)
        assert [outcome.by_program for outcome in outcomes] == [True, False, False]
    assert took_s < 10


@pytest.mark.usefixtures("seen_from_here")
def test_sandboxes_end_with_the_process_that_made_them(backend):
    script = f"""
import asyncio
from tests.integration.sandbox.backends import *
from tests.integration.sandbox.host import something_running
async def main():
    sandbox = await {backend!r}.create()
    async with something_running(sandbox) as running:
        print(running.namespace(), flush=True)
        await running.task
asyncio.run(main())
"""
    folder = tempfile.mkdtemp()
    environment = dict(os.environ) | {"TMPDIR": folder}
    maker = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment, text=True
    )
    assert maker.stdout is not None
    with maker.stdout:
        namespace = Path(maker.stdout.readline().strip())
    assert members(namespace)
    maker.kill()
    maker.wait()
    deadline = time.monotonic() + 9  # before the program in it would end by itself
    while members(namespace) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert members(namespace) == []
    shutil.rmtree(folder)


def test_two_sandboxes_see_nothing_of_each_other(run, backend, sandbox):
    async def look():
        other = await backend.create()
        try:
            await other.put("mine", b"other")
            async with something_running(other):
                return await sandbox.exec(["sh", "-c", "ls -A; cat /proc/[0-9]*/cmdline"])
        finally:
            await other.close()

    seen = run(look())
    assert b"mine" not in seen.stdout
    assert b"sleep" not in seen.stdout

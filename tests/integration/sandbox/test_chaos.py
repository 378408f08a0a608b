"""Killed, frozen, slowed down and lied to for a few seconds; and what a local sandbox does then."""

import asyncio
import json
import os
import signal
import sys

import pytest

from espalier.sandbox import SandboxLost, SandboxTimeout, SandboxUnavailable
from espalier.sandbox.local import LocalBackend
from tests.benchmarks.chaos import processes

_STARTS_WITHIN_S = 4.0


@pytest.fixture
def local(run):
    """A backend of this machine's own sandboxes."""
    backend = LocalBackend(packages=(), preimport=(), start_timeout_s=_STARTS_WITHIN_S)
    try:
        run(_create_and_close(LocalBackend(packages=(), preimport=())))
    except SandboxUnavailable as error:
        pytest.skip(f"local: {str(error)[:200]}")
    return backend


@pytest.fixture
def trial():
    """Plays a plan in an interpreter of its own, which takes in what loses its parent."""

    async def play(*options):
        process = await asyncio.create_subprocess_exec(
            *("python", "-m", "tests.benchmarks.chaos", *options),
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"},
        )
        said, _ = await process.communicate()
        return process.returncode, said.decode()

    return play


async def _create_and_close(backend):
    await (await backend.create()).close()


def test_every_invariant_holds_through_chaos(run, local, trial):
    status, said = run(trial("--seconds", "4", "--claims", "40", "--pools", "2", "--size", "3"))
    assert status == 0, said


def test_a_missing_reset_is_found(run, local, trial):
    options = (
        "--seconds",
        "4",
        "--claims",
        "40",
        "--pools",
        "1",
        "--size",
        "2",
        "--weaken",
        "reset",
    )
    status, said = run(trial(*options))
    assert status == 1
    first = json.loads(said.splitlines()[-1])["violations"][0]
    # the names that an earlier borrower left are listed, or stand in a session's output
    assert "leftover" in first or "another's result" in first, first


def test_what_arrives_after_a_reset_is_refused(run, sandbox):
    """As when a network is slow, and the borrower who sent it has given up."""

    async def use():
        await sandbox.reset()
        earlier = dict(sandbox._use)
        await sandbox.reset()
        late = [
            sandbox.http.put("/files", params={"path": "late"}, content=b"x", headers=earlier),
            sandbox.http.post("/run", json={"argv": ["touch", "late"]}, headers=earlier),
            sandbox.http.post("/reset", headers=earlier),
        ]
        answers = await asyncio.gather(*late)
        return [answer.status_code for answer in answers], await sandbox.exec(["ls"])

    statuses, listed = run(use())
    assert statuses == [409, 409, 409]
    assert listed.stdout == b""


def test_closing_twice_at_once_is_closing_once(run, local):
    async def use():
        sandbox = await LocalBackend(packages=(), preimport=()).create()
        async with asyncio.timeout(8.0):  # waiting for each other took 10
            await asyncio.gather(sandbox.close(), sandbox.close())

    run(use())


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGSTOP, SandboxTimeout), (signal.SIGKILL, SandboxLost)]
)
def test_a_start_that_is_struck_ends_in_time(run, local, number, error):
    async def use():
        before = set(processes.first_processes())
        creating = asyncio.create_task(local.create())
        while not (new := set(processes.first_processes()) - before):
            await asyncio.sleep(0)
        assert processes.strike(new.pop(), os.getpid(), number)
        with pytest.raises(error):
            await asyncio.wait_for(creating, 10 * _STARTS_WITHIN_S)
        assert set(processes.first_processes()) == before

    run(use())

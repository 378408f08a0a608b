"""The pool over real sandboxes: what borrowers leave, and what they lose."""

import pytest

from espalier.sandbox import SandboxLost
from espalier.sandbox.pool import PoolSettings, SandboxPool
from espalier.sandbox.starting import differences, probe
from tests.integration.sandbox.host import something_running

pytestmark = pytest.mark.contract

_ONE = PoolSettings(size=1, low_water=1, high_water=1, max_uses=50)
_LITTER = """
import atexit, builtins, os, subprocess, sys, tempfile, threading
builtins.sum = lambda values: 42
os.environ["PATH"] = "/workspace/evil"
os.makedirs("/workspace/evil", exist_ok=True)
for folder in ("/workspace", "/tmp", "/dev/shm", "/var/tmp"):
    try:
        open(f"{folder}/sitecustomize.py", "w").write("print('mine')")
        os.setxattr(folder, "user.mark", b"x")
    except OSError:
        pass
try:
    open("/workspace/.python_history", "w").write("x")
    os.chmod("/workspace", 0o700)
except OSError:
    pass
if os.fork() == 0:
    os.setsid()
    threading.Event().wait()
"""


def test_a_borrower_finds_nothing_of_earlier_ones(run, backend):
    async def use():
        async with SandboxPool(backend, _ONE) as pool:
            names = set()
            for _ in range(3):
                async with pool.claim() as sandbox:
                    names.add(sandbox.name)
                    found = await sandbox.python("sum([1, 2]), 'tempfile' in dir()")
                    assert found.stdout == b"(3, False)\n"
                    listed = await sandbox.exec(["ls", "-A", "/workspace", "/tmp", "/dev/shm"])
                    assert listed.stdout == b"/dev/shm:\n\n/tmp:\n\n/workspace:\n"
                    await sandbox.python(_LITTER)
                    await sandbox.run_python(_LITTER, timeout_s=1.0)
            return names, pool.metrics.failures

    names, failures = run(use())
    assert len(names) == 1
    assert failures == {}


def test_the_probe_sees_leftovers_that_a_reset_removes(run, sandbox):
    async def look():
        await sandbox.reset()
        fresh = await probe(sandbox)
        await sandbox.put("left", b"x")
        await sandbox.exec(["touch", "/tmp/left"])
        dirty = await probe(sandbox)
        await sandbox.reset()
        return differences(fresh, dirty), differences(fresh, await probe(sandbox))

    dirty, clean = run(look())
    assert dirty == ["/tmp", "/workspace"]
    assert clean == []


def test_every_borrower_has_the_prepared_files(run, backend):
    async def prepare(sandbox):
        await sandbox.put("repository/code.py", b"answer = 42\n")
        await sandbox.exec(
            ["sh", "-c", "ln -s code.py repository/link; chmod 600 repository/code.py"]
        )

    async def use():
        async with SandboxPool(backend, _ONE, prepare=prepare) as pool:
            for _ in range(2):
                async with pool.claim() as sandbox:
                    found = await sandbox.exec(["cat", "repository/link"])
                    assert found.stdout == b"answer = 42\n"
                    await sandbox.exec(["sh", "-c", "echo answer = 1 > repository/code.py"])
            return pool.metrics.failures

    assert run(use()) == {}


def test_a_lost_sandbox_costs_one_episode(run, backend):
    async def use():
        settings = PoolSettings(size=2, low_water=1, high_water=1)
        async with SandboxPool(backend, settings) as pool:
            with pytest.raises(SandboxLost):
                await _use_a_dying_one(pool)
            async with pool.claim() as sandbox:
                assert (await sandbox.exec(["echo", "next"])).stdout == b"next\n"
            return pool.metrics.failures

    assert run(use()) == {"lost": 1}


async def _use_a_dying_one(pool):
    async with pool.claim() as sandbox, something_running(sandbox) as running:
        await running.kill_server()
        await running.task

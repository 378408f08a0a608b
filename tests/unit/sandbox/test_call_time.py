"""The time of a call: its own, that of its programs, and waits, which are not counted."""

import asyncio
import time
from dataclasses import replace

import pytest

from espalier.environments.losses import CallTimeoutError
from espalier.rollout.episode import ToolRunner
from espalier.sandbox import ExecResult
from espalier.sandbox.choice import PoolThread
from espalier.sandbox.pool import PoolSettings
from tests.fakes.scripted_sandbox import ENDED, ScriptedBackend, ScriptedSandbox

LIMIT_S = 1.0
"""Several times what a busy machine needs for a call that waits for nothing."""
QUICK = PoolSettings(low_water=1, high_water=1, size=1, backoff_s=0.01)


class SlowSandbox(ScriptedSandbox):
    """Programs take as many seconds as their code says, unless their wall time ends them."""

    def __init__(self, name):
        super().__init__(name)
        self.walls_s = []

    async def run_python(self, code, *, stdin=b"", timeout_s=None, limits=None):
        if not code.replace(".", "").isdigit():  # the pool's probe
            return await super().run_python(code)
        self.walls_s.append(timeout_s)
        takes_s = float(code)
        await asyncio.sleep(min(takes_s, timeout_s))
        ended = ExecResult(stdout=b"", **ENDED)
        if takes_s <= timeout_s:
            return ended
        return replace(ended, exit_status=None, signal=9, killed_by="wall_time")


class SlowBackend(ScriptedBackend):
    async def create(self):
        await super().create()
        self.made[-1] = SlowSandbox(self.made[-1].name)
        return self.made[-1]

    async def close(self):
        pass


def with_pool(use):
    backend = SlowBackend()
    with PoolThread(backend, QUICK) as sandboxes:
        return asyncio.run(use(sandboxes)), backend.made


def borrower(sandboxes, *programs, then_s=0.0):
    """A tool that runs programs of so many seconds in a borrowed sandbox."""

    async def run():
        async with sandboxes.claim() as sandbox:
            results = [await sandbox.run_python(code, timeout_s=5.0) for code in programs]
        await asyncio.sleep(then_s)
        return [result.killed_by for result in results]

    async def tool():
        return await sandboxes.run(run())

    return tool


@pytest.mark.parametrize("workers", [0, 5], ids=["awaited", "in a thread"])
def test_waiting_for_a_sandbox_is_not_the_calls_time(workers):
    async def use(sandboxes):
        tools = ToolRunner(workers=workers, timeout_s=LIMIT_S)
        tool = borrower(sandboxes, "0.3")

        def threaded():
            return sandboxes.post(tool()).result()

        calls = [tools.run(threaded if workers else tool) for _ in range(5)]
        return await asyncio.gather(*calls)

    began = time.perf_counter()
    results, _ = with_pool(use)
    assert time.perf_counter() - began > LIMIT_S, "together they waited longer than one call may"
    assert results == [[None]] * 5


def test_a_program_that_outlasts_its_call_is_ended_and_read():
    async def use(sandboxes):
        tools = ToolRunner(workers=0, timeout_s=LIMIT_S)
        return await tools.run(borrower(sandboxes, "0.2", "9", "0.01"))

    results, (sandbox,) = with_pool(use)
    assert results == [None, "wall_time", "wall_time"]
    first, second = sandbox.walls_s  # the third was not started
    assert second < first <= LIMIT_S


def test_a_tool_that_hangs_beside_its_sandbox_is_given_up():
    async def use(sandboxes):
        tools = ToolRunner(workers=0, timeout_s=LIMIT_S)
        with pytest.raises(CallTimeoutError):
            await tools.run(borrower(sandboxes, "0.05", then_s=20.0))
        return time.perf_counter()

    began = time.perf_counter()
    ended, _ = with_pool(use)
    assert ended - began < 10


def test_outside_of_a_call_programs_have_their_own_limit_alone():
    _, (sandbox,) = with_pool(lambda sandboxes: borrower(sandboxes, "0.01")())
    assert sandbox.walls_s == [5.0]

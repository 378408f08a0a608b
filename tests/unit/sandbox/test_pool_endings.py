"""The end of a pool, and sandboxes that say what they should not: every claim still ends."""

import asyncio
import threading

import pytest

from espalier.sandbox import ExecResult, SandboxError, SandboxLost, SandboxUnavailable
from espalier.sandbox.choice import PoolThread
from espalier.sandbox.pool import PoolSettings, SandboxPool
from espalier.sandbox.starting import differences, probe
from tests.fakes.scripted_sandbox import ENDED, ScriptedBackend, ScriptedSandbox

_ONE = PoolSettings(
    size=1, low_water=0, high_water=1, claim_timeout_s=5.0, backoff_s=0.01, longest_backoff_s=0.01
)


async def _hold(pool, until):
    async with pool.claim():
        await until.wait()


async def _lose(pool):
    async with pool.claim() as sandbox:
        sandbox.is_lost = True
        await sandbox.exec(["true"])


def test_closing_a_pool_ends_waiters_refuses_claims_and_starts_nothing():
    async def main():
        release = asyncio.Event()
        async with SandboxPool(ScriptedBackend(), _ONE) as pool:
            holder = asyncio.create_task(_hold(pool, release))
            waiter = asyncio.create_task(_hold(pool, release))
            await asyncio.sleep(0.05)
        with pytest.raises(SandboxUnavailable, match="closed"):
            async with asyncio.timeout(1.0), pool.claim():
                pass
        release.set()
        ended = await asyncio.gather(holder, waiter, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return ended, pool.metrics

    (held, waited), metrics = asyncio.run(main())
    assert held is None
    assert isinstance(waited, SandboxUnavailable)
    assert metrics.created == metrics.closed == 1


def test_one_failed_start_does_not_end_a_pool():
    async def main():
        backend = ScriptedBackend([None, SandboxUnavailable("killed while it started")])
        async with SandboxPool(backend, _ONE, jitter=lambda: 0.0) as pool:
            with pytest.raises(SandboxLost):
                await _lose(pool)
            async with pool.claim():
                return len(backend.starts_s)

    assert asyncio.run(asyncio.wait_for(main(), 10)) == 3


@pytest.mark.parametrize(
    ("said", "status"), [("{}", 1), ("no json", 0), ("[]", 0), ("[" * 100_000, 0)]
)
def test_a_probe_that_says_no_object_is_a_loss(said, status):
    class Lying(ScriptedSandbox):
        async def run_python(self, code, **_):
            return ExecResult(stdout=said.encode(), **ENDED | {"exit_status": status})

    with pytest.raises(SandboxLost, match="probe"):
        asyncio.run(probe(Lying("lying")))


def test_closing_ends_a_borrower_on_another_loop():
    ended = []

    async def borrow(thread):
        async with thread.claim():
            await asyncio.Event().wait()

    async def elsewhere(thread):
        ended.append(await asyncio.gather(thread.run(borrow(thread)), return_exceptions=True))

    with PoolThread(ScriptedBackend(), _ONE) as thread:
        other = threading.Thread(target=lambda: asyncio.run(elsewhere(thread)), daemon=True)
        other.start()
        other.join(0.3)
    other.join(10.0)
    assert len(ended) == 1
    assert isinstance(ended[0][0], asyncio.CancelledError)


def test_a_closing_or_closed_thread_takes_no_more_work():
    class Backend(ScriptedBackend):
        async def close(self):
            with pytest.raises(SandboxUnavailable):
                thread.post(asyncio.sleep(0))
            closing.append(self)

    async def borrow(thread):
        async with thread.claim():
            pass

    closing = []
    with PoolThread(Backend(), _ONE) as thread:
        pass
    assert len(closing) == 1
    with pytest.raises(SandboxError, match="closed"):
        asyncio.run(thread.run(borrow(thread)))


def test_changed_new_and_missing_entries_are_named():
    before = {"a": 1, "b": [1, "x"], "c": None}
    assert differences(before, before) == []
    assert differences(before, {"a": 2, "b": [1, "x"], "d": 0}) == ["a", "d"]

"""The end of a pool, and sandboxes that say what they should not: every claim still ends."""

import asyncio
import threading

import pytest

from espalier.sandbox import SandboxError, SandboxLost, SandboxUnavailable
from espalier.sandbox.choice import PoolThread
from espalier.sandbox.pool import PoolSettings, SandboxPool
from espalier.sandbox.starting import probe
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


def test_closing_a_pool_ends_its_waiters_with_an_error():
    async def main():
        release = asyncio.Event()
        async with SandboxPool(ScriptedBackend(), _ONE) as pool:
            holder = asyncio.create_task(_hold(pool, release))
            waiter = asyncio.create_task(_hold(pool, release))
            await asyncio.sleep(0.05)
        release.set()
        return await asyncio.gather(holder, waiter, return_exceptions=True), pool.metrics

    (held, waited), metrics = asyncio.run(asyncio.wait_for(main(), 10))
    assert held is None
    assert isinstance(waited, SandboxUnavailable)
    assert metrics.created == metrics.closed == 1


def test_a_closed_pool_refuses_claims_at_once():
    async def main():
        async with SandboxPool(ScriptedBackend(), _ONE) as pool:
            pass
        with pytest.raises(SandboxUnavailable, match="closed"):
            async with asyncio.timeout(1.0), pool.claim():
                pass

    asyncio.run(main())


def test_a_loan_that_outlives_its_pool_starts_nothing():
    async def main():
        release = asyncio.Event()
        async with SandboxPool(ScriptedBackend(), _ONE) as pool:
            holder = asyncio.create_task(_hold(pool, release))
            await asyncio.sleep(0.05)
        release.set()
        await holder
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(main()) == set()


def test_one_failed_start_does_not_end_a_pool():
    async def main():
        backend = ScriptedBackend([None, SandboxUnavailable("killed while it started")])
        async with SandboxPool(backend, _ONE, jitter=lambda: 0.0) as pool:
            with pytest.raises(SandboxLost):
                await _lose(pool)
            async with pool.claim():
                return len(backend.starts_s)

    assert asyncio.run(asyncio.wait_for(main(), 10)) == 3


@pytest.mark.parametrize("said", ["[]", "3", "null", "[" * 100_000])
def test_a_probe_that_is_no_object_is_a_loss(said):
    class Lying(ScriptedSandbox):
        async def run_python(self, code, **_):
            return (await self.exec([said])).__class__(stdout=said.encode(), **ENDED)

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


def test_a_closing_thread_takes_no_more_work():
    class Backend(ScriptedBackend):
        async def close(self):
            try:
                taken.append(thread.post(asyncio.sleep(0)))
            except SandboxUnavailable as error:
                refused.append(error)

    taken, refused = [], []
    with PoolThread(Backend(), _ONE) as thread:
        pass
    assert (len(taken), len(refused)) == (0, 1)


def test_a_closed_thread_refuses_work_at_once():
    async def borrow(thread):
        async with thread.claim():
            pass

    with PoolThread(ScriptedBackend(), _ONE) as thread:
        pass
    with pytest.raises(SandboxError, match="closed"):
        asyncio.run(thread.run(borrow(thread)))

"""The pool, over sandboxes that are told what to do."""

import asyncio

import pytest

from espalier.sandbox import (
    SandboxLost,
    SandboxQuota,
    SandboxRefused,
    SandboxTimeout,
    SandboxUnavailable,
)
from espalier.sandbox.pool import PoolSettings, SandboxPool
from tests.fakes.scripted_sandbox import ScriptedBackend

QUICK = PoolSettings(
    size=4, low_water=1, high_water=2, max_uses=3, max_starting=2,
    claim_timeout_s=1.0, backoff_s=0.02, longest_backoff_s=0.1,
)  # fmt: skip
ONE = QUICK.model_copy(update={"size": 1, "high_water": 1})


def _with_pool(use, backend, settings=QUICK, **parts):
    async def main():
        pool = SandboxPool(backend, settings, jitter=lambda: 1.0, **parts)
        async with pool:
            result = await use(pool)
        assert backend.alive == []
        return result

    return asyncio.run(asyncio.wait_for(main(), 10))


async def _until(condition):
    for _ in range(200):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that")


def test_no_sandbox_is_lent_twice_and_few_exist():
    backend = ScriptedBackend(create_s=0.002)

    async def use(pool):
        lent = set()

        async def borrow():
            async with pool.claim() as sandbox:
                assert sandbox.name not in lent
                assert max(len(backend.alive), pool.num_existing) <= QUICK.size
                lent.add(sandbox.name)
                await asyncio.sleep(0.002)
                lent.remove(sandbox.name)

        await asyncio.gather(*(borrow() for _ in range(40)))
        return pool.metrics

    metrics = _with_pool(use, backend)
    assert len(metrics.claim_s) == 40
    assert len(backend.made) >= 40 / QUICK.max_uses


async def _prepare(sandbox):
    await sandbox.put("repository", b"clean")


@pytest.mark.parametrize(("prepare", "files"), [(None, {}), (_prepare, {"repository": b"clean"})])
def test_every_borrower_finds_what_was_prepared_and_nothing_else(prepare, files):
    backend = ScriptedBackend()

    async def use(pool):
        found = []
        for _ in range(2):
            async with pool.claim() as sandbox:
                found.append(dict(sandbox.files))
                await sandbox.put("repository", b"edited")
                await sandbox.put("mine", b"x")
        return found

    assert _with_pool(use, backend, ONE, prepare=prepare) == [files] * 2
    assert len(backend.made) == 1


def test_a_sandbox_dirty_after_reset_is_not_lent_again():
    async def use(pool):
        async with pool.claim() as sandbox:
            sandbox.stuck["orphans"] = 3
        await _until(lambda: sandbox.is_closed)
        for _ in range(6):
            async with pool.claim() as other:
                assert other is not sandbox
        return pool.metrics

    metrics = _with_pool(use, ScriptedBackend())
    assert metrics.failures["polluted_orphans"] == 1


def test_a_sandbox_is_replaced_after_max_uses():
    backend = ScriptedBackend()

    async def use(pool):
        names = []
        for _ in range(7):
            async with pool.claim() as sandbox:
                names.append(sandbox.name)
        return names, pool.metrics.retired["worn"]

    names, worn = _with_pool(use, backend, ONE)
    assert names == ["scripted-0"] * 3 + ["scripted-1"] * 3 + ["scripted-2"]
    assert worn == 2


def test_a_lost_sandbox_fails_one_borrower_without_a_retry():
    backend = ScriptedBackend()

    async def lose(pool):
        async with pool.claim() as sandbox:
            sandbox.is_lost = True
            await sandbox.exec(["pay"])

    async def use(pool):
        with pytest.raises(SandboxLost, match="gone"):
            await lose(pool)
        async with pool.claim() as other:
            assert (await other.exec(["next"])).stdout == b"next"
        return pool.metrics.failures

    failures = _with_pool(use, backend)
    lost = next(sandbox for sandbox in backend.made if sandbox.is_lost)
    assert lost.resets == 1  # when it was made
    assert failures == {"lost": 1}


def test_a_borrowers_own_error_gives_a_clean_sandbox_back():
    backend = ScriptedBackend()

    async def use(pool):
        for error in (ZeroDivisionError, SandboxRefused("no such path")):
            with pytest.raises((ZeroDivisionError, SandboxRefused)):
                async with pool.claim():
                    raise error
        await _until(lambda: pool.num_ready == 2)
        return pool.metrics.failures

    assert _with_pool(use, backend) == {}
    assert len(backend.made) <= 3


def test_creates_are_retried_after_growing_pauses():
    quota = [SandboxQuota("all pods are taken")] * 5
    backend = ScriptedBackend(quota)
    settings = QUICK.model_copy(update={"max_starting": 1})

    async def use(pool):
        async with pool.claim() as sandbox:
            return sandbox.name, pool.metrics.failures["quota"]

    assert _with_pool(use, backend, settings) == ("scripted-0", 5)
    pauses = [b - a for a, b in zip(backend.starts_s, backend.starts_s[1:], strict=False)][:5]
    expected = [0.02, 0.04, 0.08, 0.1, 0.1]
    assert all(p >= e - 0.002 for p, e in zip(pauses, expected, strict=True)), pauses


def test_creates_in_flight_are_bounded():
    backend = ScriptedBackend(create_s=0.01)
    settings = QUICK.model_copy(update={"size": 12, "high_water": 12, "max_starting": 3})

    async def use(pool):
        await _until(lambda: pool.num_ready == 12)

    _with_pool(use, backend, settings)
    assert backend.most_creating == 3


def test_a_claim_timeout_says_why():
    backend = ScriptedBackend([SandboxQuota("pods: 50 of 50 used")] * 100)
    settings = QUICK.model_copy(update={"claim_timeout_s": 0.1})

    async def use(pool):
        with pytest.raises(SandboxTimeout, match="50 of 50 used"):
            async with pool.claim():
                pass
        return pool.metrics.failures["claim_timeout"]

    assert _with_pool(use, backend, settings) == 1


def test_an_unavailable_backend_is_not_retried():
    backend = ScriptedBackend([SandboxUnavailable("no bwrap")] * 100)

    async def use(pool):
        for _ in range(3):
            with pytest.raises(SandboxUnavailable, match="no bwrap"):
                async with pool.claim():
                    pass

    _with_pool(use, backend)
    assert len(backend.starts_s) <= QUICK.max_starting


def test_a_borrower_who_gives_up_waiting_leaves_no_sandbox_behind():
    backend = ScriptedBackend(create_s=0.02)

    async def use(pool):
        async def borrow():
            async with pool.claim():
                await asyncio.sleep(0)

        waiting = [asyncio.create_task(borrow()) for _ in range(10)]
        await asyncio.sleep(0.02)
        for task in waiting[::2]:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await _until(lambda: pool.num_ready >= 1)
        await borrow()

    _with_pool(use, backend)


def test_between_the_water_marks_none_is_started():
    backend = ScriptedBackend()
    settings = QUICK.model_copy(update={"size": 8, "low_water": 2, "high_water": 5})

    async def use(pool):
        await _until(lambda: pool.num_ready == 5)
        made = []
        async with pool.claim(), pool.claim(), pool.claim():
            await asyncio.sleep(0.02)
            made.append(len(backend.made))
            async with pool.claim():
                await _until(lambda: pool.num_ready == 4)  # 4 are lent, and 8 may exist
                made.append(len(backend.made))
        return made

    assert _with_pool(use, backend, settings) == [5, 8]


def test_a_warm_sandbox_is_lent_at_once_and_counted():
    async def use(pool):
        await _until(lambda: pool.num_ready == 2)
        async with pool.claim() as sandbox:
            assert (await sandbox.exec(["hello"])).stdout == b"hello"
            await asyncio.sleep(0.02)
        return pool.metrics.as_dict()

    counted = _with_pool(use, ScriptedBackend())
    assert counted["sandbox/claims"] == 1
    assert 0 <= counted["sandbox/claim_p50_s"] < 0.02
    assert 0 < counted["sandbox/utilisation"] <= 1
    assert counted["sandbox/created"] == 2


def test_an_unprepared_sandbox_is_closed_and_replaced():
    backend, failing = ScriptedBackend(), iter([True, False, False, False])

    async def prepare(sandbox):
        if next(failing):
            sandbox.is_lost = True
        await sandbox.put("x", b"")

    async def use(pool):
        async with pool.claim() as sandbox:
            return sandbox.name

    assert _with_pool(use, backend, prepare=prepare) != "scripted-0"
    assert backend.made[0].is_closed

"""Many sandboxes of one kind: borrowed from a pool, or alive all at once; and what they hold."""

import asyncio
import statistics
import time
from pathlib import Path

from espalier.sandbox import Backend, Sandbox
from espalier.sandbox.pool import PoolSettings, SandboxPool

PROGRAM = ["/bin/true"]
AT_ONCE = 20
STARTING = 8
_BESIDES = (b"sandboxd", b"conmon", b"containerd-shim", b"runsc")
"""Command lines of what a sandbox consists of, and of what stands around each."""


def quantiles_ms(seconds: list[float]) -> dict[str, float]:
    """Median and 99th percentile, in milliseconds."""
    ordered = sorted(seconds)
    last = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"p50_ms": round(1e3 * statistics.median(ordered), 3), "p99_ms": round(1e3 * last, 3)}


async def in_a_pool(backend: Backend, times: int) -> dict[str, dict[str, float]]:
    """Claims of warm sandboxes, alone and twenty at a moment; memory of each, all of them idle."""
    settings = PoolSettings(size=AT_ONCE, low_water=AT_ONCE, high_water=AT_ONCE, max_uses=10**6)
    before = _held_bytes()
    async with SandboxPool(backend, settings) as pool:
        await _until_ready(pool)
        held = _held_bytes()
        answers = []

        async def borrow() -> None:
            started = time.perf_counter()
            async with pool.claim() as sandbox:
                await sandbox.exec(PROGRAM)
                answers.append(time.perf_counter() - started)

        for _ in range(times // 10):
            await borrow()
            await _until_ready(pool)
        serial, pool.metrics.claim_s, answered = pool.metrics.claim_s, [], answers[:]
        answers.clear()
        await asyncio.gather(*(borrow() for _ in range(AT_ONCE)))
        return {
            "claim": quantiles_ms(serial),
            "claim and first exec": quantiles_ms(answered),
            "claim, 20 at once": quantiles_ms(pool.metrics.claim_s),
            "claim and first exec, 20 at once": quantiles_ms(answers),
            "memory each": {"mb": round((held - before) / AT_ONCE / 1e6, 1)},
        }


async def many(backend: Backend, number: int) -> dict[str, dict[str, float]]:
    """So many at the same time: until all are ready, their memory, one exec in each at once."""
    slots, started, before = asyncio.Semaphore(STARTING), time.perf_counter(), _held_bytes()

    async def make() -> Sandbox:
        async with slots:
            return await backend.create()

    async def close(sandbox: Sandbox) -> None:
        async with slots:
            await sandbox.close()

    async def ask(sandbox: Sandbox) -> float:
        began = time.perf_counter()
        await sandbox.exec(PROGRAM)
        return time.perf_counter() - began

    made = await asyncio.gather(*(make() for _ in range(number)), return_exceptions=True)
    sandboxes = [sandbox for sandbox in made if not isinstance(sandbox, BaseException)]
    try:
        took_s = time.perf_counter() - started
        held = _held_bytes() - before
        asked = await asyncio.gather(*map(ask, sandboxes), return_exceptions=True)
    finally:
        await asyncio.gather(*map(close, sandboxes))
    answered = [seconds for seconds in asked if isinstance(seconds, float)]
    failed = [repr(error) for error in (*made, *asked) if isinstance(error, BaseException)]
    figures = {"number": len(sandboxes), "ready_s": round(took_s, 1)}
    figures |= {"mb_each": round(held / max(len(sandboxes), 1) / 1e6, 1), "answered": len(answered)}
    figures |= quantiles_ms(answered) if answered else {}
    return {f"{number} at once": figures | ({"failed": failed[0]} if failed else {})}


async def _until_ready(pool: SandboxPool) -> None:
    while pool.num_ready < AT_ONCE:
        await asyncio.sleep(0.02)


def _held_bytes() -> int:
    """Proportional memory of all sandbox processes, and of what stands around them here."""
    held = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            if any(part in words for part in _BESIDES):
                text = (folder / "smaps_rollup").read_text()
                held += 1024 * int(text.partition("\nPss:")[2].split()[0])
        except (OSError, IndexError):
            continue
    return held

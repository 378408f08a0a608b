"""What a sandbox costs: starting it, a program in it, borrowing it, its memory.

    python -m tests.benchmarks.sandbox --backends local,podman

Beside a bare fork and exec of the same program. Prints a table, and JSON in its last line. Podman
needs an image that has sandboxd (ESPALIER_SANDBOX_IMAGE, else one is built from this Debian).
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from espalier.sandbox import Backend, PoolSettings, Sandbox, SandboxPool, SandboxUnavailable
from tests.integration.sandbox.backends import BACKENDS, AbsentError

PROGRAM = ["/bin/true"]
AT_ONCE = 20
_WIDTH = 34


def quantiles_ms(seconds: list[float]) -> dict[str, float]:
    """Median and 99th percentile, in milliseconds."""
    ordered = sorted(seconds)
    last = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"p50_ms": round(1e3 * statistics.median(ordered), 3), "p99_ms": round(1e3 * last, 3)}


async def timed(times: int, work: Callable[[], Awaitable[object]]) -> dict[str, float]:
    """One after the other."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        await work()
        seconds.append(time.perf_counter() - started)
    return quantiles_ms(seconds) | {"per_s": round(times / sum(seconds), 1)}


async def bare(times: int) -> dict[str, float]:
    """The same program without any sandbox."""

    async def spawn() -> None:
        os.waitpid(os.posix_spawn(PROGRAM[0], PROGRAM, {}), 0)

    return await timed(times, spawn)


async def chosen(name: str) -> Backend:
    """The settings of a backend that work here."""
    reason = ""
    for candidate in BACKENDS[name]():
        try:
            await (await candidate.create()).close()
        except SandboxUnavailable as error:
            reason = str(error)
        else:
            return candidate
    raise AbsentError(reason)


async def in_one(sandbox: Sandbox, times: int) -> dict[str, dict[str, float]]:
    """Everything that one sandbox does over and over."""

    async def four_at_once() -> None:
        await asyncio.gather(*(sandbox.exec(PROGRAM) for _ in range(4)))

    await sandbox.python("pass")
    figures = {
        "exec": await timed(times, lambda: sandbox.exec(PROGRAM)),
        "python, stateless": await timed(times, lambda: sandbox.run_python("pass")),
        "python, session": await timed(times, lambda: sandbox.python("pass")),
        "put 1 MB": await timed(times // 10, lambda: sandbox.put("x", bytes(10**6))),
        "get 1 MB": await timed(times // 10, lambda: sandbox.get("x")),
        "reset": await timed(times // 10, sandbox.reset),
    }
    together = await timed(times // 4, four_at_once)
    figures["exec, 4 at once"] = {"per_s": round(4 * together["per_s"], 1)}
    return figures


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


async def _until_ready(pool: SandboxPool) -> None:
    while pool.num_ready < AT_ONCE:
        await asyncio.sleep(0.02)


def _held_bytes() -> int:
    """Proportional memory of all sandbox processes, and of what stands around them here."""
    held = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            if b"sandboxd" in words or b"conmon" in words:
                text = (folder / "smaps_rollup").read_text()
                held += 1024 * int(text.partition("\nPss:")[2].split()[0])
        except (OSError, IndexError):
            continue
    return held


async def measure(names: list[str], times: int) -> dict[str, object]:
    """All figures of all backends; of an absent one the reason."""
    rows: dict[str, object] = {"fork and exec, bare": {"exec": await bare(times)}}
    for name in names:
        try:
            backend = await chosen(name)
        except AbsentError as error:
            rows[name] = {"absent": str(error)}
            continue
        creating = await timed(5, lambda made=backend: _open_and_close(made))
        sandbox = await backend.create()
        try:
            figures = {"create and close": creating} | await in_one(sandbox, times)
        finally:
            await sandbox.close()
        rows[name] = figures | await in_a_pool(backend, times)
    return rows


async def _open_and_close(backend: Backend) -> None:
    await (await backend.create()).close()


def show(rows: dict[str, object]) -> None:
    """The table."""
    for name, figures in rows.items():
        print(name)
        for what, values in dict(figures).items():
            told = (
                values
                if isinstance(values, str)
                else "  ".join(f"{k} {v}" for k, v in values.items())
            )
            print(f"  {what:<{_WIDTH}}{told}")


def main() -> None:
    """Measure, and say on which machine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--backends", default="local", help="comma-separated: " + ", ".join(BACKENDS)
    )
    parser.add_argument("--times", type=int, default=200, help="how often each thing is done")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.backends.split(","), options.times))
    show(rows)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    about = {
        "commit": commit.stdout.strip(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "machine": platform.platform(),
        "python": sys.version.split()[0],
        "times": options.times,
    }
    print(json.dumps({"about": about, "rows": rows}))


if __name__ == "__main__":
    main()

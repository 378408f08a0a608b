"""What a sandbox costs: starting it, a program in it, borrowing it, its memory.

    python -m tests.benchmarks.sandbox --backends local,podman
    python -m tests.cluster run python -m tests.benchmarks.sandbox --backends "pods on gVisor"

Beside the same program without any sandbox, and beside `kubectl exec` where pods are. Prints a
table, and JSON in its last line. Podman needs an image that has sandboxd (ESPALIER_SANDBOX_IMAGE,
else one is built from this Debian), and ESPALIER_TEST_PODMAN=1.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Awaitable, Callable

from espalier.sandbox import Backend, Sandbox, SandboxUnavailable
from tests.benchmarks.keeping import provenance
from tests.benchmarks.sandboxes_at_once import PROGRAM, in_a_pool, many, quantiles_ms
from tests.integration.sandbox.backends import BACKENDS, AbsentError, first_that_works

_WIDTH = 34
_KUBECTL_TIMES = 10


async def timed(times: int, work: Callable[[], Awaitable[object]]) -> dict[str, float]:
    """One after the other."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        await work()
        seconds.append(time.perf_counter() - started)
    return quantiles_ms(seconds) | {"per_s": round(times / sum(seconds), 1)}


async def bare(times: int) -> dict[str, dict[str, float]]:
    """The same program without any sandbox, from a process as small as sandboxd's spawner."""

    async def fork() -> None:
        pid = os.fork()
        if pid == 0:
            os.execv(PROGRAM[0], PROGRAM)
        os.waitpid(pid, 0)

    async def spawn() -> None:
        os.waitpid(os.posix_spawn(PROGRAM[0], PROGRAM, {}), 0)

    return {"fork and exec": await timed(times, fork), "spawn": await timed(times, spawn)}


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


async def by_kubectl(sandbox: Sandbox) -> dict[str, dict[str, float]]:
    """The way into a pod that needs no server in it."""
    settings = sandbox.cluster.wanted.settings
    command = ["kubectl", "exec", "-n", settings.namespace, sandbox.name, "--", *PROGRAM]

    async def ask() -> None:
        done = await asyncio.create_subprocess_exec(*command)
        if await done.wait() != 0:
            raise RuntimeError(f"{command} ended with {done.returncode}")

    return {"kubectl exec": await timed(_KUBECTL_TIMES, ask)}


async def measure(names: list[str], times: int, number: int) -> dict[str, object]:
    """All figures of all backends; of an absent one the reason."""
    rows: dict[str, object] = {"no sandbox": await bare(times)}
    for name in names:
        try:
            backend = await first_that_works(BACKENDS[name]())
        except (AbsentError, SandboxUnavailable) as error:
            rows[name] = {"absent": str(error)}
            continue
        figures = await starting(backend)
        sandbox = await backend.create()
        try:
            figures |= await in_one(sandbox, times)
            if name.startswith("pods") and shutil.which("kubectl"):
                figures |= await by_kubectl(sandbox)
        finally:
            await sandbox.close()
        figures |= await in_a_pool(backend, times)
        if number:
            figures |= await many(backend, number)
        rows[name] = figures
        await backend.close()
    return rows


async def starting(backend: Backend) -> dict[str, dict[str, float]]:
    """From nothing to the first answer, and back to nothing."""
    seconds: dict[str, list[float]] = {"create": [], "close": []}
    for _ in range(5):
        began = time.perf_counter()
        sandbox = await backend.create()
        seconds["create"].append(time.perf_counter() - began)
        began = time.perf_counter()
        await sandbox.close()
        seconds["close"].append(time.perf_counter() - began)
    return {what: quantiles_ms(each) for what, each in seconds.items()}


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
    parser.add_argument("--many", type=int, default=100, help="sandboxes at once; 0 for none")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.backends.split(","), options.times, options.many))
    show(rows)
    about = provenance(threads=1) | {
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "machine": platform.platform(),
        "python": sys.version.split()[0],
        "times": options.times,
    }
    print(json.dumps({"benchmark": "sandbox", "origin": about, "rows": rows}))


if __name__ == "__main__":
    main()

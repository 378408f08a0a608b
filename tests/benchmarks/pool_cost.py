"""What keeping sandboxes costs the process that keeps them, from one to thousands.

    python -m tests.benchmarks.pool_cost --sizes 1,100,1000,5000

A pool over the Kubernetes backend, against a stand-in of a cluster in a process of its own: plain
objects, whose pods run at once and whose programs end at once. So the figures are the controller's
own: requests to the API server, seconds and processor time until all are ready, memory, then claims
(each with one exec, a reset and a probe) and the way back. Every size runs in a fresh process that
has loaded the Kubernetes client before (`client_mb`). The stand-in shares the machine's cores.
Prints a table, and JSON in its last line.
"""

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import espalier.sandbox.kubernetes as kubernetes_backend
from espalier.config import SandboxPodsConfig
from espalier.sandbox.kubernetes import KubernetesBackend
from espalier.sandbox.pod import SandboxPodSettings
from espalier.sandbox.pool import PoolSettings, SandboxPool
from tests.benchmarks.keeping import provenance
from tests.fakes.cluster_stand_in import write_kubeconfig

STARTING = 32
CLAIMS = 200
AT_ONCE = 20
_DESCRIPTORS = 20_000
_COLUMNS = (
    "sandboxes", "fill_s", "fill_cpu_s", "api_calls", "api_calls_each", "resident_mb", "kb_each",
    "client_mb", "idle_cpu_percent", "claim_p50_ms", "claim_20_p50_ms", "close_s",
)  # fmt: skip


def main() -> None:
    """Measure each size in a process of its own, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", default="1,100,1000,5000")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asyncio.run(measure(options.one))))
        return
    rows = []
    print("  ".join(f"{name:>16}" for name in _COLUMNS))
    for size in options.sizes.split(","):
        one = [sys.executable, "-m", "tests.benchmarks.pool_cost", "--one", size]
        done = subprocess.run(one, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{size} sandboxes: {done.stderr[-2000:]}")
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print("  ".join(f"{rows[-1][name]:>16}" for name in _COLUMNS), flush=True)
    print(json.dumps({"benchmark": "pool_cost", "origin": provenance(threads=1), "rows": rows}))


async def measure(size: int) -> dict[str, float]:
    """One pool of that size, from nothing to nothing."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, _DESCRIPTORS), most))
    settings = PoolSettings(
        size=size, low_water=size, high_water=size, max_starting=STARTING, max_uses=10**9
    )
    with _stand_in() as port, tempfile.TemporaryDirectory() as folder:
        kubernetes_backend.SANDBOXD_PORT = port
        backend = KubernetesBackend(
            settings=SandboxPodSettings(image="python:1", namespace="boxes", pods=_PODS),
            run_id="cost",
            kubeconfig=write_kubeconfig(Path(folder) / "kubeconfig", port),
        )
        bare_bytes = _resident_bytes()
        import kubernetes.client  # noqa: F401 for what loading it costs alone

        client_bytes = _resident_bytes() - bare_bytes
        before_bytes, began_s, began_cpu_s = _resident_bytes(), time.monotonic(), _cpu_s()
        async with SandboxPool(backend, settings) as pool:
            await _until_ready(pool, size)
            held_bytes = _resident_bytes() - before_bytes
            row = {
                "sandboxes": size,
                "fill_s": round(time.monotonic() - began_s, 2),
                "fill_cpu_s": round(_cpu_s() - began_cpu_s, 2),
                "resident_mb": round(held_bytes / 1e6, 1),
                "kb_each": round(held_bytes / 1e3 / size, 1),
                "client_mb": round(client_bytes / 1e6, 1),
            }
            row["idle_cpu_percent"] = await _idle()
            row |= await _claims(pool, size)
            began_s = time.monotonic()
        calls = sum(backend.cluster.server.requests.values())
        row["close_s"] = round(time.monotonic() - began_s, 2)
        row |= {"api_calls": calls, "api_calls_each": round(calls / size, 3)}
        await backend.close()
    return row


_PODS = SandboxPodsConfig()


async def _until_ready(pool: SandboxPool, size: int) -> None:
    while pool.num_ready < size:
        await asyncio.sleep(0.01)


async def _idle() -> float:
    """Share of a processor that the pool takes while nobody asks for anything."""
    began_cpu_s = _cpu_s()
    await asyncio.sleep(3.0)
    return round(100 * (_cpu_s() - began_cpu_s) / 3.0, 2)


async def _claims(pool: SandboxPool, size: int) -> dict[str, float]:
    async def borrow() -> None:
        async with pool.claim() as sandbox:
            await sandbox.exec(["true"])

    for _ in range(CLAIMS):
        await borrow()
        await _until_ready(pool, size)
    serial_s, pool.metrics.claim_s = pool.metrics.claim_s, []
    await asyncio.gather(*(borrow() for _ in range(min(AT_ONCE, size))))
    together_s = pool.metrics.claim_s
    await _until_ready(pool, size)
    return {
        "claim_p50_ms": round(1e3 * statistics.median(serial_s), 3),
        "claim_20_p50_ms": round(1e3 * statistics.median(together_s), 3),
    }


@contextmanager
def _stand_in():
    command = [sys.executable, "-m", "tests.fakes.cluster_stand_in"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _resident_bytes() -> int:
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(text.partition("VmRSS:")[2].split()[0])


if __name__ == "__main__":
    main()

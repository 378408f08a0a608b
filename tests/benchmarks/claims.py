"""How long a sandbox is waited for: claims of agent-sandbox against our own pools of warm pods.

    python -m tests.cluster neighbours --sources DIR --only agent-sandbox --up
    ESPALIER_TEST_NEIGHBOURS=agent-sandbox python -m tests.cluster run \\
      python -m tests.benchmarks.claims --claims 200

On the cluster of KUBECONFIG, one claim after the other, each from the request until sandboxd has
answered, and beside it the first program's end. Three ways, each with up to `--warm` sandboxes that
are ready; a claim is made when there is one:

    agent-sandbox   a SandboxClaim, whose pod is deleted afterwards and replaced by the controller
    own, fresh      our pool, which starts pods by itself and uses each once (max_uses = 1)
    own, reset      our pool as it is by default: a sandbox is reset and lent again

Prints a table, and JSON in its last line.
"""

import argparse
import asyncio
import json
import time
from dataclasses import dataclass, field

from espalier.cluster.kubernetes_api import object_path, read
from espalier.cluster.objects.names import run_object_name
from espalier.sandbox import Sandbox, SandboxLost
from espalier.sandbox.kubernetes import KubernetesBackend
from espalier.sandbox.pod import AGENT_SANDBOX_API, POOL_PART
from espalier.sandbox.pool import PoolSettings, SandboxPool
from tests.benchmarks.keeping import provenance
from tests.benchmarks.sandboxes_at_once import quantiles_ms
from tests.integration.sandbox.backends import claims, pods

RUNTIME_CLASSES = ("runc", "gvisor")
WAYS = ("agent-sandbox", "own, fresh", "own, reset")
PROGRAM = ["/bin/true"]
_LOOK_S = 0.05
_READY_S = 600.0
_COLUMNS = ("way", "runtime_class", "claims", "p50_ms", "p99_ms", "exec_p50_ms", "exec_p99_ms")


@dataclass
class ClaimWaits:
    """Seconds of each claim, and of each claim with its first program."""

    claim: list[float] = field(default_factory=list)
    answer: list[float] = field(default_factory=list)
    lost: int = 0

    async def note(self, began_s: float, sandbox: Sandbox) -> None:
        """A sandbox was had; run the first program in it."""
        self.claim.append(time.perf_counter() - began_s)
        try:
            await sandbox.exec(PROGRAM)
        except SandboxLost:
            self.lost += 1
        else:
            self.answer.append(time.perf_counter() - began_s)


async def through_agent_sandbox(backend: KubernetesBackend, number: int, warm: int) -> ClaimWaits:
    """Claims, each made when the controller has a warm pod that is ready."""
    waits = ClaimWaits()
    backend.warm_pods = warm
    await (await backend.create()).close()  # the first makes the template and the warm pool
    cluster = backend.cluster
    name = run_object_name(backend.run_id, POOL_PART)
    path = object_path(AGENT_SANDBOX_API, "sandboxwarmpools", backend.settings.namespace, name)

    async def is_ready() -> bool:
        pool = await cluster.server.send(read(path))
        return pool.get("status", {}).get("readyReplicas", 0) > 0

    closing: set[asyncio.Task[None]] = set()
    for _ in range(number):
        await _until(is_ready)
        began_s = time.perf_counter()
        sandbox = await backend.create()
        await waits.note(began_s, sandbox)
        task = asyncio.create_task(sandbox.close())
        closing.add(task)
        task.add_done_callback(closing.discard)
    await asyncio.gather(*closing)
    return waits


async def through_own_pool(
    backend: KubernetesBackend, number: int, warm: int, *, max_uses: int
) -> ClaimWaits:
    """Claims of our pool, each made when it has a sandbox that is ready."""
    waits = ClaimWaits()
    settings = PoolSettings(
        size=2 * warm, low_water=warm, high_water=warm, max_uses=max_uses, claim_timeout_s=_READY_S
    )
    async with SandboxPool(backend, settings) as pool:

        async def is_ready() -> bool:
            return pool.num_ready > 0

        for _ in range(number):
            await _until(is_ready)
            began_s = time.perf_counter()
            async with pool.claim() as sandbox:
                await waits.note(began_s, sandbox)
    return waits


async def _until(holds) -> None:
    end = time.monotonic() + _READY_S
    while not await holds():
        if time.monotonic() > end:
            raise TimeoutError(f"the warm sandboxes were not ready within {_READY_S:g} s")
        await asyncio.sleep(_LOOK_S)


async def measure(way: str, runtime_class: str, number: int, warm: int) -> dict[str, object]:
    """One way on one RuntimeClass."""
    began_s = time.monotonic()
    if way == "agent-sandbox":
        (backend,) = claims(runtime_class)
        work = through_agent_sandbox(backend, number, warm)
    else:
        (backend,) = pods(runtime_class)
        work = through_own_pool(backend, number, warm, max_uses=1 if "fresh" in way else 10**6)
    try:
        waits = await work
    finally:
        await backend.close()
    answered = {f"exec_{name}": value for name, value in quantiles_ms(waits.answer).items()}
    row = {"way": way, "runtime_class": runtime_class, "claims": number, "warm": warm}
    row["lost"] = waits.lost
    row |= quantiles_ms(waits.claim) | answered
    return row | {"took_s": round(time.monotonic() - began_s, 1)}


def main() -> None:
    """Measure every way on every RuntimeClass."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--claims", type=int, default=200)
    parser.add_argument("--warm", type=int, default=8)
    parser.add_argument("--ways", default=";".join(WAYS), help="separated by semicolons")
    parser.add_argument("--runtime-classes", default=",".join(RUNTIME_CLASSES))
    options = parser.parse_args()
    print("  ".join(f"{name:>14}" for name in _COLUMNS))
    rows = []
    for runtime_class in options.runtime_classes.split(","):
        for way in options.ways.split(";"):
            rows.append(
                asyncio.run(measure(way.strip(), runtime_class, options.claims, options.warm))
            )
            print("  ".join(f"{rows[-1][name]:>14}" for name in _COLUMNS), flush=True)
    print(json.dumps({"benchmark": "claims", "origin": provenance(threads=1), "rows": rows}))


if __name__ == "__main__":
    main()

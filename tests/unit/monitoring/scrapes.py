"""What each program answers on /metrics, after it has done some of everything."""

import asyncio
import contextlib
import re
import urllib.request

from espalier.config import ControllerConfig
from espalier.monitoring import PORT_VARIABLE, exported_tracker
from espalier.sandbox import SandboxLost
from espalier.sandbox.pool import SandboxPool
from espalier.serving.controller import Heartbeat
from espalier.serving.controller_metrics import ControllerMetrics
from tests.benchmarks.minio_server import free_port
from tests.fakes.scripted_sandbox import ScriptedBackend
from tests.unit.sandbox.test_pool import QUICK
from tests.unit.serving.test_decision import state
from tests.unit.serving.test_endpoint_in_process import Served, Words
from tests.unit.training.test_loop_over_given_groups import Run

_TYPE = re.compile(r"# TYPE (\S+) (\S+)")


def get(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def of_training(folder):
    """A loop of five steps and a pool of sandboxes, scraped while the stage is still there."""
    port = free_port()

    async def lend():
        async with SandboxPool(ScriptedBackend(), QUICK) as pool:
            with contextlib.suppress(SandboxLost):
                async with pool.claim():
                    raise SandboxLost("its node is gone")
            async with pool.claim():
                return await asyncio.to_thread(get, port)

    with exported_tracker("train", {PORT_VARIABLE: str(port)}, print) as tracker:
        Run(folder, scores=(0.1, 0.2, 0.3, 0.4)).loop.run(tracker)
        return asyncio.run(lend())


def of_endpoint():
    server = Served(Words())
    server.writer.start()
    try:
        server.endpoint.serve(server.policy, server.writer)
        assert server.complete(max_tokens=3).status_code == 200
        assert server.complete(max_tokens=-1).status_code == 400
        return server.ask("GET", "/metrics").text
    finally:
        server.writer.stop()


def of_controller():
    port = free_port()
    metrics = ControllerMetrics()
    with Heartbeat.serving(port, ControllerConfig(), lambda: 7.0, metrics):
        metrics.show("3", state("2", last_good="2"))
        metrics.count_step("fault", 17.0)
        return get(port)


def sample_names(text):
    """Names that a query may use, from the types of an exposition."""
    names = set()
    for family, kind in _TYPE.findall(text):
        names.add(family)
        if kind == "histogram":
            names.update(f"{family}_{part}" for part in ("bucket", "sum", "count"))
    return names

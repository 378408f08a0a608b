"""The Kubernetes backend on a stand-in of a cluster."""

import asyncio
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

from espalier.cluster.kubernetes_api import ApiRetries
from espalier.cluster.watches import WatchSettings
from espalier.config import SandboxPodsConfig
from espalier.sandbox.kubernetes import KubernetesBackend
from espalier.sandbox.pod import SandboxPodSettings
from tests.fakes.cluster_stand_in import StandIn, serving, write_kubeconfig

QUICK = WatchSettings(retries=ApiRetries(first_pause_s=0.01))
SETTINGS = SandboxPodSettings(image="python:1", namespace="boxes", pods=SandboxPodsConfig())


@asynccontextmanager
async def on_cluster(monkeypatch, stand_in, **parts):
    async with serving(stand_in) as port:
        monkeypatch.setattr("espalier.sandbox.kubernetes.SANDBOXD_PORT", port)
        with tempfile.TemporaryDirectory() as folder:
            kubeconfig = write_kubeconfig(Path(folder) / "kubeconfig", port)
            usual = {"start_timeout_s": 5.0, "run_id": "r17", "watching": QUICK}
            parts = usual | {"settings": SETTINGS} | parts
            backend = KubernetesBackend(kubeconfig=kubeconfig, **parts)
            try:
                yield backend
            finally:
                await backend.close()


def use(monkeypatch, work, stand_in=None, **parts):
    stand_in = stand_in or StandIn()

    async def main():
        async with on_cluster(monkeypatch, stand_in, **parts) as backend:
            return await work(backend, stand_in)

    return asyncio.run(asyncio.wait_for(main(), 120))

"""agent-sandbox: its controller gives what a claim of ours asks for, and takes it away again.

The suite of tests/integration/sandbox runs on it besides (-k agent-sandbox).
"""

import asyncio
import time
from dataclasses import replace

import pytest
from kubernetes import client

from espalier.cluster.kubernetes_api import object_path, read
from espalier.sandbox import SandboxLost
from espalier.sandbox.pod import AGENT_SANDBOX_API
from tests.integration.sandbox.backends import claims
from tests.unit.k8s.allowed_verbs import SANDBOXES

_GONE_S = 90
TTL_S = 60
"""The shortest that the profile takes."""


@pytest.fixture(params=["runc", "gvisor"])
def backend(need, request):
    need("agent-sandbox")
    (made,) = claims(request.param)
    made.warm_pods = 2
    return made


def _on_one_sandbox(backend, work):
    async def open_work_close():
        try:
            sandbox = await backend.create()
            return await work(sandbox)
        finally:
            await backend.close()

    return asyncio.run(open_work_close())


async def _claim(sandbox):
    path = object_path(AGENT_SANDBOX_API, "sandboxclaims", SANDBOXES, sandbox.name)
    return await sandbox.cluster.server.send(read(path))


def _pods_of(core, backend):
    selector = f"espalier.dev/run={backend.run_id}"
    return core.list_namespaced_pod(SANDBOXES, label_selector=selector).items


async def _lost(running):
    with pytest.raises(SandboxLost) as lost:
        await running
    return lost.value


def test_a_claim_is_given_a_pod_of_the_warm_pool(backend, core):
    async def look(sandbox):
        claim = await _claim(sandbox)
        pods = await asyncio.to_thread(_pods_of, core, backend)
        return claim["status"]["sandbox"], pods

    given, pods = _on_one_sandbox(backend, look)
    (pod,) = [one for one in pods if one.metadata.name == given["name"]]
    assert given["podIPs"] == [one.ip for one in pod.status.pod_i_ps]
    assert pod.spec.runtime_class_name == backend.settings.pods.runtime_class


def test_a_sandbox_of_a_claim_runs_programs(backend):
    said = _on_one_sandbox(backend, lambda sandbox: sandbox.run_python("print(6 * 7)"))
    assert said.text.split() == ["42"]


def test_a_closed_sandbox_has_no_pod(backend, core):
    async def close(sandbox):
        name = (await _claim(sandbox))["status"]["sandbox"]["name"]
        await sandbox.close()
        return name, [one.metadata.name for one in _pods_of(core, backend)]

    name, left = _on_one_sandbox(backend, close)
    assert name not in left


def test_a_deleted_pod_of_a_claim_is_a_lost_sandbox(backend, core):
    """agent-sandbox puts another pod in its place, which is not the sandbox that was lent."""

    async def lose(sandbox):
        running = asyncio.create_task(sandbox.exec(["sleep", "60"], timeout_s=60.0))
        await asyncio.sleep(0.5)
        name = (await _claim(sandbox))["status"]["sandbox"]["name"]
        await asyncio.to_thread(core.delete_namespaced_pod, name, SANDBOXES, grace_period_seconds=0)
        return await _lost(running)

    backend.limits = replace(backend.limits, wall_s=60.0)
    assert not _on_one_sandbox(backend, lose).by_program


def test_a_claim_ends_at_its_time_to_live(backend, core):
    pods_config = backend.settings.pods.model_copy(update={"ttl_s": TTL_S})
    backend.settings = replace(backend.settings, pods=pods_config)
    backend.limits = replace(backend.limits, wall_s=300.0)

    async def wait(sandbox):
        began = time.monotonic()
        lost = await _lost(sandbox.exec(["sleep", "240"], timeout_s=240.0))
        return lost, time.monotonic() - began

    lost, took_s = _on_one_sandbox(backend, wait)
    assert not lost.by_program
    assert took_s < TTL_S + 30, (took_s, lost)


def test_everything_goes_with_the_lease(backend, core, administrator):
    _on_one_sandbox(backend, lambda sandbox: sandbox.exec(["true"]))
    objects = client.CustomObjectsApi(administrator)
    group, version = AGENT_SANDBOX_API.split("/")
    end = time.monotonic() + _GONE_S

    def left():
        found = [pod.metadata.name for pod in _pods_of(core, backend)]
        for plural in ("sandboxclaims", "sandboxwarmpools", "sandboxtemplates"):
            items = objects.list_namespaced_custom_object(group, version, SANDBOXES, plural)
            found += [
                one["metadata"]["name"] for one in items["items"]
                if one["metadata"]["name"].startswith(backend.run_id)
            ]  # fmt: skip
        return found

    while found := left():
        assert time.monotonic() < end, found
        time.sleep(0.5)

"""Sandboxes as pods, on the node's own kernel and on gVisor's; the suite over both is elsewhere.

ESPALIER_RUNTIME_CLASSES=gvisor,runc pytest tests/integration/sandbox -k pods
"""

import asyncio
import contextlib
import copy
import os
import time
from dataclasses import replace

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from espalier.cluster.kubernetes_api import object_path, read
from espalier.cluster.objects.names import run_object_name
from espalier.config.cluster import Toleration, TopologySpread
from espalier.sandbox import SandboxLost, SandboxQuota, SandboxUnavailable
from espalier.sandbox import kubernetes as sandbox_kubernetes
from espalier.sandbox.api_server import state_of_pod
from espalier.sandbox.pod import AGENT_SANDBOX_API
from tests.cluster.network import NODE_NAME
from tests.integration.sandbox.backends import AbsentError, pods
from tests.unit.k8s.allowed_verbs import SANDBOXES

RUNTIME_CLASSES = ("runc", "gvisor")
COMPUTE = """
import numpy, pandas, sympy
table = pandas.DataFrame({"n": numpy.arange(4)})
print(sympy.factorial(20), int(table.n.sum()))
"""


@pytest.fixture(params=RUNTIME_CLASSES)
def backend(request, administrator):
    try:
        return pods(request.param)[0]
    except AbsentError as error:
        return pytest.skip(str(error))


def _on_one_sandbox(backend, work):
    async def open_work_close():
        try:
            sandbox = await backend.create()
            try:
                return await work(sandbox)
            finally:
                await sandbox.close()
        except SandboxUnavailable as error:
            return pytest.skip(str(error))
        finally:
            await backend.close()

    return asyncio.run(open_work_close())


def test_a_sandbox_computes_with_what_its_image_has(backend):
    result = _on_one_sandbox(backend, lambda sandbox: sandbox.run_python(COMPUTE))
    assert result.text.split() == ["2432902008176640000", "6"], result.text


def test_on_gvisor_a_sandbox_has_a_kernel_of_its_own(own_cluster, backend):
    release = _on_one_sandbox(backend, lambda sandbox: sandbox.exec(["uname", "-r"]))
    is_own = release.text.strip() != os.uname().release
    assert is_own is (backend.settings.pods.runtime_class == "gvisor"), release.text


def test_a_sandbox_can_neither_be_root_nor_write_its_image(backend):
    said = _on_one_sandbox(
        backend, lambda sandbox: sandbox.exec(["sh", "-c", "id -u; touch /opt/x || echo no"])
    )
    lines = said.stdout.decode().split()
    assert int(lines[0]) > 65536
    assert lines[-1] == "no"


def test_a_sandbox_holds_no_credential_of_the_cluster(backend):
    said = _on_one_sandbox(
        backend,
        lambda sandbox: sandbox.exec(["sh", "-c", "ls /var/run/secrets /run/secrets; env"]),
    )
    assert "serviceaccount" not in said.text
    assert "KUBERNETES" not in said.text


def test_sandboxes_are_deleted_with_the_lease(backend, core):
    """The trainer that dies deletes nothing: the cluster's own collector does, by owner."""

    async def leave_one_behind():
        try:
            await backend.create()
        except SandboxUnavailable as error:
            pytest.skip(str(error))
        finally:
            await backend.close()

    asyncio.run(leave_one_behind())
    selector = f"espalier.dev/run={backend.run_id}"
    end = time.monotonic() + 60
    while left := core.list_namespaced_pod(SANDBOXES, label_selector=selector).items:
        assert time.monotonic() < end, [pod.metadata.name for pod in left]
        time.sleep(0.5)


EATS_MEMORY = "held = [b'x' * 2**20 for _ in range(200)]; print(len(held))"
FILLS_DISK = """
import time
with open("/workspace/large", "wb") as file:
    for _ in range(64):
        file.write(bytes(2**20))
time.sleep(240)
"""


@pytest.fixture
def smaller(monkeypatch):
    """Makes pods with less than sandboxd inside allows: only the node is left to end them."""

    def make(**limits):
        honest = sandbox_kubernetes.sandbox_pod

        def smaller_pod(*arguments, **options):
            pod = copy.deepcopy(honest(*arguments, **options))
            (container,) = pod["spec"]["containers"]
            for kind, most in limits.items():
                container["resources"]["limits"][kind.replace("_", "-")] = most
            for volume in pod["spec"]["volumes"]:
                volume["emptyDir"].update(sizeLimit=limits.get("ephemeral_storage", "64Mi"))
            return pod

        monkeypatch.setattr(sandbox_kubernetes, "sandbox_pod", smaller_pod)

    return make


def test_a_program_over_the_pods_memory_has_itself_to_blame(backend, smaller, capsys):
    smaller(memory="160Mi")

    async def eat(sandbox):
        try:
            return await sandbox.run_python(EATS_MEMORY)
        except SandboxLost as lost:
            return lost

    outcome = _on_one_sandbox(backend, eat)
    runtime_class = backend.settings.pods.runtime_class
    with capsys.disabled():
        print(f"\n{runtime_class}: over the pod's memory: {outcome}")
    if isinstance(outcome, SandboxLost):
        assert outcome.by_program, outcome
    else:
        assert not outcome.succeeded, outcome.text


def test_a_program_over_the_pods_disk_lost_its_sandbox_itself(backend, smaller, capsys):
    smaller(ephemeral_storage="24Mi")
    backend.settings = replace(
        backend.settings, pods=backend.settings.pods.model_copy(update={"scratch": "disk"})
    )

    async def fill(sandbox):
        with pytest.raises(SandboxLost) as lost:
            await sandbox.run_python(FILLS_DISK, limits=replace(sandbox.limits, wall_s=240.0))
        return lost.value

    backend.limits = replace(backend.limits, wall_s=240.0)
    lost = _on_one_sandbox(backend, fill)
    with capsys.disabled():
        print(f"\n{backend.settings.pods.runtime_class}: over the pod's disk: {lost}")
    assert lost.by_program, lost
    assert "Evicted" in str(lost)


def test_a_preempted_pod_was_not_lost_by_its_program(own_cluster, backend, core):
    """The node has no room for both: what answers users goes before sandboxes."""
    resources = backend.settings.pods.resources
    changes = {"resources": resources.model_copy(update={"cpu_request": "1"})}
    _placed(backend, **changes)
    cores = int(core.read_node(NODE_NAME).status.allocatable["cpu"])
    wanted = {"cpu": f"{1000 * cores - 900}m"}
    urgent = {
        "metadata": {"name": "urgent"},
        "spec": {
            "priorityClassName": "espalier-serving",
            "containers": [{"name": "x", "image": "x:1", "resources": {"requests": wanted}}],
        },
    }

    async def lose(sandbox):
        running = asyncio.create_task(sandbox.exec(["sleep", "60"], timeout_s=60.0))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(core.create_namespaced_pod, "default", urgent)
        with pytest.raises(SandboxLost) as lost:
            await running
        return lost.value

    backend.limits = replace(backend.limits, wall_s=60.0)
    try:
        lost = _on_one_sandbox(backend, lose)
    finally:
        with contextlib.suppress(ApiException):
            core.delete_namespaced_pod("urgent", "default", grace_period_seconds=0)
    assert not lost.by_program, lost
    assert "PreemptionByScheduler" in str(lost)


@pytest.mark.parametrize("grace_s", [0, None])
def test_a_deleted_pod_was_not_lost_by_its_program(backend, core, grace_s):
    async def lose(sandbox):
        running = asyncio.create_task(sandbox.exec(["sleep", "60"]))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(
            core.delete_namespaced_pod, sandbox.name, SANDBOXES, grace_period_seconds=grace_s
        )
        with pytest.raises(SandboxLost) as lost:
            await running
        return lost.value

    lost = _on_one_sandbox(backend, lose)
    assert not lost.by_program, lost


def test_a_drained_pod_was_not_lost_by_its_program(backend, core):
    async def lose(sandbox):
        running = asyncio.create_task(sandbox.exec(["sleep", "60"]))
        await asyncio.sleep(0.5)
        eviction = {"metadata": {"name": sandbox.name, "namespace": SANDBOXES}}
        await asyncio.to_thread(
            core.create_namespaced_pod_eviction, sandbox.name, SANDBOXES, eviction
        )
        with pytest.raises(SandboxLost) as lost:
            await running
        return lost.value

    lost = _on_one_sandbox(backend, lose)
    assert not lost.by_program, lost
    assert "EvictionByEvictionAPI" in str(lost)


def test_after_a_lost_lease_sandboxes_have_a_new_owner(backend, administrator):
    leases = client.CoordinationV1Api(administrator)

    async def lose_lease_and_go_on():
        try:
            first = await backend.create()
            name = run_object_name(backend.run_id, "sandboxes")
            await asyncio.to_thread(leases.delete_namespaced_lease, name, SANDBOXES)
            async with asyncio.timeout(60):
                while not first.lost_because:
                    await asyncio.sleep(0.1)
            for _ in range(5):  # some may still have the owner that is gone
                with contextlib.suppress(SandboxLost):
                    second = await backend.create()
                    break
                await asyncio.sleep(2.0)
            assert (await second.exec(["true"])).succeeded
            lease = await asyncio.to_thread(leases.read_namespaced_lease, name, SANDBOXES)
            return lease.metadata.uid, backend.cluster.lease.owner.uid
        finally:
            await backend.close()

    uid, owner = asyncio.run(lose_lease_and_go_on())
    assert uid == owner


def test_a_running_sandbox_names_the_image_that_the_node_resolved(backend, core):
    async def read(sandbox):
        return await asyncio.to_thread(core.read_namespaced_pod, sandbox.name, SANDBOXES)

    pod = _on_one_sandbox(backend, read)
    found = client.ApiClient().sanitize_for_serialization(pod)
    assert "sha256:" in state_of_pod(found).image_id


def test_the_pod_of_an_address_is_found(backend):
    """As the pod behind a claim of agent-sandbox is, of which only the address is known."""

    async def find(sandbox):
        pods_path = object_path("v1", "pods", SANDBOXES)
        at = {"fieldSelector": f"status.podIP={sandbox._address}"}
        answer = await sandbox.cluster.server.send(read(pods_path, **at))
        return sandbox.name, {item["metadata"]["name"] for item in answer["items"]}

    name, found = _on_one_sandbox(backend, find)
    assert name in found


@pytest.fixture
def on_runc(own_cluster):
    """A backend whose pods wait only briefly for a node."""
    (made,) = pods("runc")
    made.start_timeout_s = 10.0
    return made


def _placed(backend, **changes):
    pods_config = backend.settings.pods.model_copy(update=changes)
    backend.settings = replace(backend.settings, pods=pods_config)
    return backend


def test_sandboxes_put_up_with_the_taints_that_the_profile_names(on_runc, core):
    taint = {"key": "espalier.dev/tests", "effect": "NoSchedule", "value": "x"}
    core.patch_node(NODE_NAME, {"spec": {"taints": [taint]}})
    try:
        with pytest.raises(SandboxQuota, match="untolerated taint"):
            _on_one_sandbox(on_runc, lambda sandbox: sandbox.exec(["true"]))
        (again,) = pods("runc")
        tolerant = _placed(again, tolerations=(Toleration(key="espalier.dev/tests"),))
        assert _on_one_sandbox(tolerant, lambda sandbox: sandbox.exec(["true"])).succeeded
    finally:
        core.patch_node(NODE_NAME, {"spec": {"taints": []}})


def test_sandboxes_that_must_be_spread_wait_for_a_place(on_runc):
    nowhere = TopologySpread(topology_key="tests/zone", when_unsatisfiable="DoNotSchedule")
    with pytest.raises(SandboxQuota, match="topology spread"):
        _on_one_sandbox(_placed(on_runc, topology_spread=(nowhere,)), lambda sandbox: sandbox.exec)


def test_gvisor_pods_run_only_on_nodes_that_are_labelled(own_cluster, administrator, core):
    """As `base` says it; the overlay of this cluster, which has one node, leaves it out."""
    nodes = client.NodeV1Api(administrator)
    label = {"espalier.dev/gvisor": "true"}
    nodes.patch_runtime_class("gvisor", {"scheduling": {"nodeSelector": label}})
    try:
        (waiting,) = pods("gvisor")
        waiting.start_timeout_s = 10.0
        with pytest.raises(SandboxQuota, match="node affinity/selector"):
            _on_one_sandbox(waiting, lambda sandbox: sandbox.exec(["true"]))
        core.patch_node(NODE_NAME, {"metadata": {"labels": label}})
        (backend,) = pods("gvisor")

        async def read(sandbox):
            assert (await sandbox.exec(["true"])).succeeded
            return await asyncio.to_thread(core.read_namespaced_pod, sandbox.name, SANDBOXES)

        pod = _on_one_sandbox(backend, read)
        assert pod.spec.node_selector == label
        assert pod.spec.overhead == {"cpu": "10m", "memory": "64Mi"}
    finally:
        nodes.patch_runtime_class("gvisor", {"scheduling": None})
        core.patch_node(NODE_NAME, {"metadata": {"labels": {"espalier.dev/gvisor": None}}})


@pytest.fixture
def agent_sandbox(own_cluster, administrator):
    """Its kinds without its controller: enough to see who makes which objects."""
    extensions = client.ApiextensionsV1Api(administrator)
    group, version = AGENT_SANDBOX_API.split("/")
    kinds = {
        "sandboxtemplates": "SandboxTemplate",
        "sandboxwarmpools": "SandboxWarmPool",
        "sandboxclaims": "SandboxClaim",
    }
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for plural, kind in kinds.items():
        names = {"plural": plural, "singular": kind.lower(), "kind": kind}
        served = {"name": version, "served": True, "storage": True}
        extensions.create_custom_resource_definition(
            {
                "metadata": {"name": f"{plural}.{group}"},
                "spec": {
                    "group": group,
                    "scope": "Namespaced",
                    "names": names,
                    "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
                },
            }
        )
    objects = client.CustomObjectsApi(administrator)

    def listed(plural):
        return objects.list_namespaced_custom_object(group, version, SANDBOXES, plural)["items"]

    _until(lambda: all(_is_served(listed, plural) for plural in kinds))
    yield listed
    for plural in kinds:
        extensions.delete_custom_resource_definition(f"{plural}.{group}")
    _until(lambda: not any(_is_served(listed, plural) for plural in kinds))


def _is_served(listed, plural):
    try:
        listed(plural)
    except ApiException as error:
        if error.status != 404:
            raise
        return False
    return True


def _until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.2)


def test_after_a_lost_lease_the_warm_pool_is_made_again(agent_sandbox, administrator):
    leases = client.CoordinationV1Api(administrator)
    (backend,) = pods("runc", agent_sandbox="always")

    def owners():
        kinds = ("sandboxtemplates", "sandboxwarmpools")
        found = [item for kind in kinds for item in agent_sandbox(kind)]
        return [item["metadata"]["ownerReferences"][0]["uid"] for item in found]

    async def lose_lease():
        cluster = await backend._open()
        try:
            first = cluster.lease.owner.uid
            assert await asyncio.to_thread(owners) == [first, first]
            await asyncio.to_thread(
                leases.delete_namespaced_lease, cluster.lease.owner.name, SANDBOXES
            )
            cluster.lease.doubt()
            async with asyncio.timeout(90):
                while (second := cluster.lease.owner.uid) == first or await asyncio.to_thread(
                    owners
                ) != [second, second]:
                    await asyncio.sleep(0.5)
        finally:
            await backend.close()

    asyncio.run(lose_lease())

import json
from dataclasses import replace

import pytest

from espalier.config import SandboxPodsConfig
from espalier.config.cluster import Toleration, TopologySpread
from espalier.records import ManifestError
from espalier.sandbox.pod import (
    sandbox_claim,
    sandbox_pod,
    sandbox_template,
    sandbox_warm_pool,
)
from tests.unit.cluster.objects.samples import LEASE, NOON, RUN, SANDBOXD, SANDBOXES


def _pod(settings=SANDBOXES, run_id=RUN, name="r17-s0"):
    return sandbox_pod(settings, SANDBOXD, name=name, run_id=run_id, owner=LEASE)


def test_a_sandbox_has_no_token_and_no_shared_volume():
    spec = _pod()["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert all(volume.keys() == {"name", "emptyDir"} for volume in spec["volumes"])
    assert "secret" not in json.dumps(spec).lower()
    assert container["terminationMessagePath"].startswith("/root/"), "the agent's user cannot go"
    assert container["resources"]["limits"].keys() == {"cpu", "memory", "ephemeral-storage"}


def test_a_sandbox_ends_with_lease_or_time_to_live():
    manifest = _pod()
    (owner,) = manifest["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Lease", LEASE.uid)
    assert manifest["spec"]["activeDeadlineSeconds"] == 14400
    assert manifest["metadata"]["labels"]["espalier.dev/ttl-seconds"] == "14400"


def test_workspaces_are_in_memory_unless_the_profile_wants_disk():
    on_disk = SandboxPodsConfig(scratch="disk")
    for pods, expected in (
        (SANDBOXES.pods, {"medium": "Memory", "sizeLimit": "256Mi"}),
        (on_disk, {"sizeLimit": "256Mi"}),
    ):
        volumes = _pod(replace(SANDBOXES, pods=pods))["spec"]["volumes"]
        found = {volume["name"]: volume["emptyDir"] for volume in volumes}
        assert found == {"tmp": expected, "workspace": expected}


@pytest.mark.parametrize(("internet_sockets", "expected"), [(False, "local"), (True, "internet")])
def test_programs_get_internet_sockets_only_where_the_profile_asks(internet_sockets, expected):
    pods = SandboxPodsConfig(internet_sockets=internet_sockets)
    (container,) = _pod(replace(SANDBOXES, pods=pods))["spec"]["containers"]
    assert {"name": "SANDBOXD_SOCKETS", "value": expected} in container["env"]


def test_sandboxes_do_not_share_a_count_of_processes():
    users = {_pod(name=f"r17-s{n}")["spec"]["securityContext"]["runAsUser"] for n in range(2000)}
    assert len(users) == 2000
    assert min(users) >= 0x40000000
    assert max(users) < 1 << 31


def test_a_sandbox_lies_where_the_profile_says():
    pods = SandboxPodsConfig(
        runtime_class="runc",
        node_selector={"pool": "tools"},
        tolerations=(Toleration(key="spot"), Toleration(key="a", operator="Equal", value="b")),
        topology_spread=(
            TopologySpread(max_skew=4),
            TopologySpread(topology_key="zone", when_unsatisfiable="DoNotSchedule"),
        ),
        image_pull_secrets=("espalier-pull",),
    )
    manifest = _pod(replace(SANDBOXES, namespace="elsewhere", pods=pods))
    spec = manifest["spec"]
    assert manifest["metadata"]["namespace"] == "elsewhere"
    assert (spec["runtimeClassName"], spec["nodeSelector"]) == ("runc", {"pool": "tools"})
    assert spec["tolerations"] == [
        {"key": "spot", "operator": "Exists"},
        {"key": "a", "operator": "Equal", "value": "b"},
    ]
    over_nodes, over_zones = spec["topologySpreadConstraints"]
    assert (over_nodes["maxSkew"], over_nodes["whenUnsatisfiable"]) == (4, "ScheduleAnyway")
    assert (over_zones["topologyKey"], over_zones["whenUnsatisfiable"]) == ("zone", "DoNotSchedule")
    labels = _pod()["metadata"]["labels"]
    assert over_nodes["labelSelector"]["matchLabels"].items() <= labels.items()
    assert spec["imagePullSecrets"] == [{"name": "espalier-pull"}]
    unspread = replace(SANDBOXES, pods=SandboxPodsConfig(topology_spread=()))
    assert "topologySpreadConstraints" not in _pod(unspread)["spec"]


def test_a_run_that_cannot_be_a_label_is_refused():
    with pytest.raises(ManifestError, match="Run 17"):
        _pod(run_id="Run 17")


def test_a_warm_sandbox_is_the_same_pod():
    made = sandbox_template(SANDBOXES, SANDBOXD, run_id=RUN, owner=LEASE)["spec"]
    template = made["podTemplate"]
    of_a_template = {"securityContext": template["spec"]["securityContext"]}
    assert template["spec"] == _pod()["spec"] | of_a_template
    assert template["metadata"]["labels"] == _pod()["metadata"]["labels"]
    assert made["networkPolicyManagement"] == "Unmanaged", "the cluster's policies are in charge"


def test_a_claim_finds_the_pool_and_the_pool_its_template():
    template = sandbox_template(SANDBOXES, SANDBOXD, run_id=RUN, owner=LEASE)
    pool = sandbox_warm_pool(SANDBOXES, run_id=RUN, owner=LEASE, replicas=4)
    claim = sandbox_claim(SANDBOXES, name="r17-c0", run_id=RUN, owner=LEASE, now=NOON)
    assert pool["spec"]["sandboxTemplateRef"]["name"] == template["metadata"]["name"]
    assert claim["spec"]["warmPoolRef"]["name"] == pool["metadata"]["name"]

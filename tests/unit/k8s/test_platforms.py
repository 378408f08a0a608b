"""Overlays and profiles of clouds and of kind, against the nodes that each of them gives.

Labels and taints are those of the platforms' documentation, and of the commands in k8s/README.md by
which pools are made; none of them was there to be asked.
"""

import ipaddress
import os
import re
from typing import NamedTuple

import pytest
import yaml

from espalier.chain import STAGES
from espalier.cluster.objects.job import stage_job
from espalier.config import load_profile
from espalier.sandbox.pod import SandboxPodSettings, sandbox_pod_spec
from tests.unit.k8s.network_model import Network, Outside, Pod, Port
from tests.unit.k8s.rendering import (
    CLOUDS,
    K8S,
    containers,
    named,
    needs_kubectl,
    of_kind,
    pod_templates,
    rendered,
)

EXAMPLES = K8S.parent / "examples"
every_cloud = pytest.mark.parametrize("folder", CLOUDS)
DOCUMENTATION = ipaddress.ip_network("203.0.113.0/24")  # RFC 5737: no host has such an address


class Node(NamedTuple):
    labels: dict
    taints: tuple = ()


GPU_TAINT = ("nvidia.com/gpu", "present", "NoSchedule")
PLAIN = Node({"kubernetes.io/os": "linux"})
POOLS = {
    "gke": {
        "plain": PLAIN,
        "gpu": Node({"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, (GPU_TAINT,)),
        "spot gpu": Node(
            {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-spot": "true"},
            (GPU_TAINT, ("cloud.google.com/gke-spot", "true", "NoSchedule")),
        ),
        "spot gpu of the server's kind": Node(
            {
                "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
                "cloud.google.com/gke-spot": "true",
            },
            (GPU_TAINT,),
        ),
        "sandboxes": Node(
            {"sandbox.gke.io/runtime": "gvisor"},
            (("sandbox.gke.io/runtime", "gvisor", "NoSchedule"),),
        ),
    },
    "eks": {
        "plain": Node({"eks.amazonaws.com/capacityType": "ON_DEMAND"}),
        "gpu": Node(
            {
                "eks.amazonaws.com/capacityType": "ON_DEMAND",
                "node.kubernetes.io/instance-type": "p5.48xlarge",
            },
            (GPU_TAINT,),
        ),
        "spot gpu": Node(
            {
                "eks.amazonaws.com/capacityType": "SPOT",
                "node.kubernetes.io/instance-type": "g6.2xlarge",
            },
            (GPU_TAINT,),
        ),
        "spot gpu of the server's kind": Node(
            {
                "karpenter.sh/capacity-type": "spot",
                "node.kubernetes.io/instance-type": "p5.48xlarge",
            },
            (GPU_TAINT,),
        ),
    },
    "aks": {
        "plain": PLAIN,
        "gpu": Node(
            {"kubernetes.azure.com/accelerator": "nvidia"}, (("sku", "gpu", "NoSchedule"),)
        ),
        "spot gpu": Node(
            {
                "kubernetes.azure.com/accelerator": "nvidia",
                "kubernetes.azure.com/scalesetpriority": "spot",
            },
            (
                ("sku", "gpu", "NoSchedule"),
                ("kubernetes.azure.com/scalesetpriority", "spot", "NoSchedule"),
            ),
        ),
    },
}
every_platform = pytest.mark.parametrize("platform", POOLS)


def fits(spec, node):
    """Whether the scheduler would put a pod there, as far as labels and taints say."""
    selected = spec.get("nodeSelector", {}).items() <= node.labels.items()
    return selected and _is_liked(spec, node) and all(_is_put_up_with(spec, t) for t in node.taints)


def _is_liked(spec, node):
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    (term,) = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get(
        "nodeSelectorTerms", [{"matchExpressions": []}]
    )
    assert {e["operator"] for e in term["matchExpressions"]} <= {"NotIn"}
    return all(node.labels.get(e["key"]) not in e["values"] for e in term["matchExpressions"])


def _is_put_up_with(spec, taint):
    key, value, effect = taint
    return any(
        one["key"] == key
        and one.get("effect", effect) == effect
        and (one.get("operator") == "Exists" or one.get("value") == value)
        for one in spec.get("tolerations", ())
    )


def where(platform, spec):
    return {name for name, node in POOLS[platform].items() if fits(spec, node)}


def stage_pod(platform, stage):
    settings = load_profile(EXAMPLES / f"{platform}-spot.toml").kubernetes
    job = stage_job(stage, ("espalier",), run_id="r1", settings=settings, environment={})
    return job["spec"]


@every_platform
@pytest.mark.parametrize("stage", STAGES)
def test_only_stages_that_compute_run_on_spot_gpus(platform, stage):
    found = where(platform, stage_pod(platform, stage)["template"]["spec"])
    assert found == ({"spot gpu"} if STAGES[stage].uses_policy else {"plain"})


@needs_kubectl
@every_platform
def test_the_inference_server_is_on_gpus_that_are_not_reclaimed(platform):
    deployment = named(rendered(f"overlays/{platform}"), "Deployment", "espalier-rollout")
    assert where(platform, deployment["spec"]["template"]["spec"]) == {"gpu"}


@needs_kubectl
@every_platform
def test_what_needs_no_gpu_takes_no_room_beside_one(platform):
    for pod in pod_templates(rendered(f"overlays/{platform}")):
        if pod.owner != "Deployment/espalier-rollout":
            assert where(platform, pod.spec) == {"plain"}, pod.owner


@every_platform
def test_a_reclaimed_node_is_no_attempt_and_loses_few_steps(platform):
    job = stage_pod(platform, "train")
    assert job["podFailurePolicy"]["rules"][0] == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    (container,) = job["template"]["spec"]["containers"]
    (source,) = container["envFrom"]
    example = load_profile(EXAMPLES / f"{platform}-spot.toml")
    assert example.training.evaluate_every * 20 <= example.training.steps
    endpoints = named(rendered(f"overlays/{platform}"), "ConfigMap", source["configMapRef"]["name"])
    assert endpoints["data"]["ESPALIER_ARTIFACTS"].startswith("s3://")


def test_gke_sandboxes_run_where_its_own_class_says():
    """GKE Sandbox's RuntimeClass adds the selector and the toleration; the pod has none itself."""
    spec = sandbox_pod_spec(
        SandboxPodSettings(
            image="registry.example/sandbox:1",
            namespace="espalier-sandboxes",
            pods=load_profile(EXAMPLES / "gke-spot.toml").kubernetes.sandboxes,
        ),
        {},
        user=1,
    )
    assert spec["runtimeClassName"] == "gvisor"
    assert where("gke", spec) == {"plain"}
    merged = spec | {
        "nodeSelector": {"sandbox.gke.io/runtime": "gvisor"},
        "tolerations": [{"key": "sandbox.gke.io/runtime", "value": "gvisor"}],
    }
    assert where("gke", merged) == {"sandboxes"}


def blocks(objects):
    """(policy, address block) of every rule."""
    return [
        (policy["metadata"]["name"], peer["ipBlock"]["cidr"])
        for policy in of_kind(objects, "NetworkPolicy")
        for rule in policy["spec"].get("egress", [])
        for peer in rule.get("to", [])
        if "ipBlock" in peer
    ]


@needs_kubectl
@every_cloud
def test_a_cloud_overlay_as_it_is_opens_no_address(folder):
    link_local = {"169.254.20.10/32"} if folder == "overlays/gke" else set()
    found = {cidr for _, cidr in blocks(rendered(folder))}
    assert {cidr for cidr in found if cidr not in link_local} == {
        cidr for cidr in found if ipaddress.ip_network(cidr).subnet_of(DOCUMENTATION)
    }
    assert found > link_local


@needs_kubectl
@every_cloud
def test_the_api_server_of_a_cloud_listens_on_443(folder):
    spec = named(rendered(folder), "NetworkPolicy", "reach-kubernetes")["spec"]
    assert [rule["ports"] for rule in spec["egress"]] == [[{"protocol": "TCP", "port": 443}]]


def overlay(at, base, **more):
    """An overlay of a user's own, over one of ours."""
    at.mkdir()
    kustomization = {"resources": [os.path.relpath(K8S / base, at)], **more}
    (at / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return rendered(at)


@needs_kubectl
@every_cloud
def test_addresses_are_put_in_as_the_readme_says(folder, tmp_path):
    (block,) = re.findall(r"(?m)^    patches:\n(?:    .*\n)+", (K8S / "README.md").read_text())
    patches = yaml.safe_load(block)["patches"]
    objects = overlay(tmp_path / "mine", folder, patches=patches)
    assert not [name for name, cidr in blocks(objects) if "203.0.113." in cidr]
    network = Network(of_kind(objects, "NetworkPolicy"), {"espalier-pipeline": {}})
    trainer = Pod(
        "trainer",
        "espalier-pipeline",
        dict.fromkeys(("espalier.dev/may-reach-kubernetes", "espalier.dev/may-reach-s3"), "true"),
    )
    for address, passes in (("10.1.2.3", True), ("10.7.0.9", True), ("10.200.0.1", False)):
        assert network.connects(trainer, Outside("there", address), Port(443)) is passes


@needs_kubectl
@every_cloud
def test_the_workspace_is_of_a_class_that_many_nodes_write(folder):
    claim = named(rendered(folder), "PersistentVolumeClaim", "espalier-workspace")["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"]
    classes = {item["metadata"]["name"] for item in of_kind(rendered(folder), "StorageClass")}
    assert claim["storageClassName"] in classes | {"standard-rwx"}
    for item in of_kind(rendered(folder), "StorageClass"):
        assert item["reclaimPolicy"] == "Retain"  # a deleted claim deletes no checkpoint


@needs_kubectl
def test_eks_gives_roles_to_those_who_ask_s3():
    objects = rendered("overlays/eks")
    roles = {
        item["metadata"]["name"]: item["metadata"]["annotations"]["eks.amazonaws.com/role-arn"]
        for item in of_kind(objects, "ServiceAccount")
        if "annotations" in item["metadata"]
    }
    askers = {
        pod.spec["serviceAccountName"]
        for pod in pod_templates(objects)
        if pod.labels.get("espalier.dev/may-reach-s3")
    } | {stage_pod("eks", stage)["template"]["spec"]["serviceAccountName"] for stage in STAGES}
    assert askers <= roles.keys() <= askers | {"espalier-training-launcher"}
    assert all(":000000000000:" in role for role in roles.values())  # nobody's account
    for pod in pod_templates(objects):
        for container in containers(pod.spec):
            assert not [v for v in container.get("env", []) if v["name"].startswith("AWS_ACCESS")]


@pytest.mark.parametrize("platform", ["gke", "eks", "aks"])
def test_stages_have_keys_unless_their_account_has_a_role(platform):
    (container,) = stage_pod(platform, "ingest")["template"]["spec"]["containers"]
    has_keys = "AWS_SECRET_ACCESS_KEY" in {variable["name"] for variable in container["env"]}
    assert has_keys is (platform != "eks")


@needs_kubectl
@every_platform
@pytest.mark.parametrize("base", ["base", "overlays/kueue", "overlays/kubeflow"])
def test_a_platform_goes_with_every_other_overlay(platform, base, tmp_path):
    at = tmp_path / "mine"
    component = os.path.relpath(K8S / "platforms" / platform, at)
    objects = overlay(at, base, components=[component])
    assert named(objects, "NetworkPolicy", "reach-kubernetes")
    for flavor in of_kind(objects, "ResourceFlavor"):
        if flavor["metadata"]["name"] == "espalier-gpu":
            selector = flavor["spec"]["nodeLabels"]
            server = named(objects, "Deployment", "espalier-rollout")["spec"]["template"]["spec"]
            assert selector.items() <= server["nodeSelector"].items()


def test_kind_gets_a_cluster_of_the_addresses_that_policies_name():
    cluster = yaml.safe_load((K8S / "overlays/kind/cluster.yaml").read_text())
    assert (cluster["kind"], cluster["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    services = ipaddress.ip_network(cluster["networking"]["serviceSubnet"])
    assert f"{services[1]}/32" in {cidr for _, cidr in blocks(rendered("overlays/kind"))}


@needs_kubectl
def test_the_profile_of_kind_asks_for_what_its_overlay_has():
    example = load_profile(EXAMPLES / "kind.toml")
    classes = {
        item["metadata"]["name"] for item in of_kind(rendered("overlays/kind"), "RuntimeClass")
    }
    assert example.kubernetes.sandboxes.runtime_class in classes
    images = {
        c["image"] for p in pod_templates(rendered("overlays/kind")) for c in containers(p.spec)
    }
    assert example.kubernetes.images.cpu in images

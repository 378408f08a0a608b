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
H100 = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
GKE_SPOT = {"cloud.google.com/gke-spot": "true"}
P5 = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
AKS_GPU = {"kubernetes.azure.com/accelerator": "nvidia"}
AKS_SPOT = {"kubernetes.azure.com/scalesetpriority": "spot"}
ON_DEMAND = {"eks.amazonaws.com/capacityType": "ON_DEMAND"}
SPOT = {"eks.amazonaws.com/capacityType": "SPOT"}
G6 = {"node.kubernetes.io/instance-type": "g6.2xlarge"}
L4 = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
GKE_SPOT_TAINT = ("cloud.google.com/gke-spot", "true", "NoSchedule")
AKS_TAINT = ("sku", "gpu", "NoSchedule")
AKS_SPOT_TAINT = ("kubernetes.azure.com/scalesetpriority", "spot", "NoSchedule")
POOLS = {
    "gke": {
        "plain": PLAIN,
        "gpu": Node(H100, (GPU_TAINT,)),
        "spot gpu": Node(L4 | GKE_SPOT, (GPU_TAINT, GKE_SPOT_TAINT)),
        "spot gpu of the server's kind": Node(H100 | GKE_SPOT, (GPU_TAINT,)),
    },
    "eks": {
        "plain": Node(ON_DEMAND),
        "gpu": Node(ON_DEMAND | P5, (GPU_TAINT,)),
        "spot gpu": Node(SPOT | G6, (GPU_TAINT,)),
        "spot gpu of the server's kind": Node(
            {"karpenter.sh/capacity-type": "spot"} | P5, (GPU_TAINT,)
        ),
    },
    "aks": {
        "plain": PLAIN,
        "gpu": Node(AKS_GPU, (AKS_TAINT,)),
        "spot gpu": Node(AKS_GPU | AKS_SPOT, (AKS_TAINT, AKS_SPOT_TAINT)),
    },
}
every_platform = pytest.mark.parametrize("platform", POOLS)


def fits(spec, node):
    """Whether the scheduler would put a pod there, as far as labels and taints say."""
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    (term,) = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get(
        "nodeSelectorTerms", [{"matchExpressions": []}]
    )
    assert {e["operator"] for e in term["matchExpressions"]} <= {"NotIn"}
    return (
        spec.get("nodeSelector", {}).items() <= node.labels.items()
        and all(node.labels.get(e["key"]) not in e["values"] for e in term["matchExpressions"])
        and all(_is_put_up_with(spec, taint) for taint in node.taints)
    )


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
    return job["spec"]["template"]["spec"]


@every_platform
@pytest.mark.parametrize("stage", STAGES)
def test_only_stages_that_compute_run_on_spot_gpus(platform, stage):
    found = where(platform, stage_pod(platform, stage))
    assert found == ({"spot gpu"} if STAGES[stage].uses_policy else {"plain"})


@needs_kubectl
@every_platform
def test_only_the_inference_server_is_on_gpus_that_stay(platform):
    for pod in pod_templates(rendered(f"overlays/{platform}")):
        pool = "gpu" if pod.owner == "Deployment/espalier-rollout" else "plain"
        assert where(platform, pod.spec) == {pool}, pod.owner


def blocks(objects):
    """Address blocks of every rule."""
    return [
        peer["ipBlock"]["cidr"]
        for policy in of_kind(objects, "NetworkPolicy")
        for rule in policy["spec"].get("egress", [])
        for peer in rule.get("to", [])
        if "ipBlock" in peer
    ]


@needs_kubectl
@every_cloud
def test_a_cloud_overlay_as_it_is_opens_no_address(folder):
    link_local = {"169.254.20.10/32"} if folder == "overlays/gke" else set()
    found = set(blocks(rendered(folder)))
    assert found > link_local
    assert all(ipaddress.ip_network(cidr).subnet_of(DOCUMENTATION) for cidr in found - link_local)
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
    assert not [cidr for cidr in blocks(objects) if "203.0.113." in cidr]
    network = Network(of_kind(objects, "NetworkPolicy"), {"espalier-pipeline": {}})
    trainer = Pod(
        "trainer",
        "espalier-pipeline",
        dict.fromkeys(("espalier.dev/may-reach-kubernetes", "espalier.dev/may-reach-s3"), "true"),
    )
    for address, passes in (("10.1.2.3", True), ("10.7.0.9", True), ("10.200.0.1", False)):
        assert network.connects(trainer, Outside("there", address), Port(443)) is passes


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
    } | {stage_pod("eks", stage)["serviceAccountName"] for stage in STAGES}
    assert askers <= roles.keys() <= askers | {"espalier-training-launcher"}
    assert all(":000000000000:" in role for role in roles.values())  # nobody's account
    pods = [pod.spec for pod in pod_templates(objects)] + [stage_pod("eks", s) for s in STAGES]
    for container in (one for spec in pods for one in containers(spec)):
        assert not [v for v in container.get("env", []) if v["name"].startswith("AWS_ACCESS")]
    (container,) = stage_pod("gke", "ingest")["containers"]
    assert "AWS_ACCESS_KEY_ID" in {variable["name"] for variable in container["env"]}


@needs_kubectl
@every_platform
@pytest.mark.parametrize("base", ["base", "overlays/kueue", "overlays/kubeflow"])
def test_a_platform_goes_with_every_other_overlay(platform, base, tmp_path):
    at = tmp_path / "mine"
    objects = overlay(at, base, components=[os.path.relpath(K8S / "platforms" / platform, at)])
    assert named(objects, "NetworkPolicy", "reach-kubernetes")
    if base == "overlays/kueue":  # the one with GPUs, whose nodes share a workspace
        claim = named(objects, "PersistentVolumeClaim", "espalier-workspace")["spec"]
        assert claim["accessModes"] == ["ReadWriteMany"]
        classes = {i["metadata"]["name"]: i for i in of_kind(objects, "StorageClass")}
        assert claim["storageClassName"] in classes.keys() | {"standard-rwx"}
        assert all(item["reclaimPolicy"] == "Retain" for item in classes.values())
    for flavor in of_kind(objects, "ResourceFlavor"):
        if flavor["metadata"]["name"] == "espalier-gpu":
            server = named(objects, "Deployment", "espalier-rollout")["spec"]["template"]["spec"]
            assert flavor["spec"]["nodeLabels"].items() <= server["nodeSelector"].items()


@needs_kubectl
def test_kinds_cluster_and_profile_fit_its_overlay():
    objects = rendered("overlays/kind")
    cluster = yaml.safe_load((K8S / "overlays/kind/cluster.yaml").read_text())
    services = ipaddress.ip_network(cluster["networking"]["serviceSubnet"])
    assert f"{services[1]}/32" in blocks(objects)
    settings = load_profile(EXAMPLES / "kind.toml").kubernetes
    assert named(objects, "RuntimeClass", settings.sandboxes.runtime_class)
    images = {c["image"] for p in pod_templates(objects) for c in containers(p.spec)}
    assert settings.images.cpu in images

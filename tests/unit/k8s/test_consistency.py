"""Names that have to agree: between objects, with the code, with a profile's defaults."""

import os
import re

import pytest
import yaml

from espalier.cluster.objects import pods, serving
from espalier.config import KubernetesConfig
from espalier.config.cluster import amount
from espalier.sandbox import pod as sandbox
from tests.unit.k8s.network_model import selects
from tests.unit.k8s.rendering import (
    K8S,
    LOCAL,
    containers,
    every_overlay,
    named,
    needs_kubectl,
    of_kind,
    pod_templates,
    rendered,
)

SETTINGS = KubernetesConfig()
SECRETS = {"espalier-s3", "espalier-rollout", serving.KEYS_SECRET}


def _names(objects, kind, namespace):
    return {
        item["metadata"]["name"]
        for item in of_kind(objects, kind)
        if item["metadata"].get("namespace") == namespace
    }


def _references(spec, kind):
    """(name, key) of everything of `kind` that a pod's environment takes from elsewhere."""
    for container in containers(spec):
        for variable in container.get("env", []):
            if found := variable.get("valueFrom", {}).get(f"{kind}KeyRef"):
                yield found["name"], found["key"]


@needs_kubectl
@every_overlay
def test_manifests_hold_no_secret_and_document_those_they_read(folder):
    assert of_kind(rendered(folder), "Secret") == []
    read = set()
    for pod in pod_templates(rendered(folder)):
        read |= {name for name, _ in _references(pod.spec, "secret")}
        volumes = pod.spec.get("volumes", ())
        read |= {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    readme = (K8S / "README.md").read_text(encoding="utf-8")
    assert read <= SECRETS
    assert all(name in readme for name in read)


@needs_kubectl
@every_overlay
def test_whatever_a_pod_refers_to_is_installed_with_it(folder):
    objects = rendered(folder)
    for pod in pod_templates(objects):
        assert pod.spec["serviceAccountName"] in _names(objects, "ServiceAccount", pod.namespace)
        assert pod.spec["priorityClassName"] in _names(objects, "PriorityClass", None)
        for name, key in _references(pod.spec, "configMap"):
            assert key in named(objects, "ConfigMap", name)["data"], pod.owner
        for volume in pod.spec.get("volumes", ()):
            if claim := volume.get("persistentVolumeClaim"):
                claims = _names(objects, "PersistentVolumeClaim", pod.namespace)
                assert claim["claimName"] in claims, pod.owner


@needs_kubectl
@every_overlay
@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget"])
def test_every_selector_finds_the_pods_of_one_deployment(folder, kind):
    objects = rendered(folder)
    for item in of_kind(objects, kind):
        selector = item["spec"]["selector"]
        wanted = selector if kind == "PodDisruptionBudget" else {"matchLabels": selector}
        found = [pod for pod in pod_templates(objects) if selects(wanted, pod.labels)]
        assert [pod.owner for pod in found] == [f"Deployment/{item['metadata']['name']}"]
        ports = {port["name"] for port in found[0].spec["containers"][0].get("ports", [])}
        assert {port["targetPort"] for port in item["spec"].get("ports", [])} <= ports


@needs_kubectl
@every_overlay
def test_every_object_has_our_labels_and_a_guarded_namespace(folder):
    ours = {SETTINGS.pipeline_namespace: "baseline", SETTINGS.sandbox_namespace: "restricted"}
    for item in rendered(folder):
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "espalier", item["metadata"]["name"]
        assert item["metadata"].get("namespace") in {None, *ours}
    for pod in pod_templates(rendered(folder)):
        assert pod.labels["app.kubernetes.io/part-of"] == "espalier", pod.owner
        assert pod.labels.keys() >= {"app.kubernetes.io/name", "app.kubernetes.io/component"}
    level = {
        item["metadata"]["name"]: item["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for item in of_kind(rendered(folder), "Namespace")
    }
    assert level == ours


@needs_kubectl
@every_overlay
def test_a_profile_and_the_controller_find_what_was_installed(folder):
    objects = rendered(folder)
    pipeline, sandboxes = SETTINGS.pipeline_namespace, SETTINGS.sandbox_namespace
    assert SETTINGS.endpoints in _names(objects, "ConfigMap", pipeline)
    assert SETTINGS.s3_secret in SECRETS
    accounts = {pods.STEP_ACCOUNT, pods.TRAINER_ACCOUNT, pods.LAUNCHER_ACCOUNT}
    assert accounts <= _names(objects, "ServiceAccount", pipeline)
    assert sandbox.SANDBOX_ACCOUNT in _names(objects, "ServiceAccount", sandboxes)
    if folder != "overlays/gke":  # which brings the class itself
        assert SETTINGS.sandboxes.runtime_class in _names(objects, "RuntimeClass", None)
    classes = _names(objects, "PriorityClass", None)
    assert classes >= {pods.PIPELINE_PRIORITY, pods.SANDBOX_PRIORITY}
    template = named(objects, "Deployment", serving.DEPLOYMENT)["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["name"] == serving.CONTAINER
    # a field that the manifests set as well would be set back by the next kubectl apply
    assert serving.MODEL_VARIABLE not in {variable["name"] for variable in container["env"]}
    assert "annotations" not in template["metadata"]


@needs_kubectl
@every_overlay
def test_sandboxes_of_default_size_fit_the_limits_of_their_namespace(folder):
    objects = [
        o for o in rendered(folder) if o["metadata"].get("namespace") == "espalier-sandboxes"
    ]
    (limits,) = of_kind(objects, "LimitRange")
    (quota,) = of_kind(objects, "ResourceQuota")
    most, hard = limits["spec"]["limits"][0]["max"], quota["spec"]["hard"]
    resources = SETTINGS.sandboxes.resources
    assert amount(resources.disk_limit) <= amount(most["ephemeral-storage"])
    # that of the base, which is more than a platform's own class may count
    overhead = named(rendered("base"), "RuntimeClass", "gvisor")["overhead"]["podFixed"]
    for kind in ("cpu", "memory"):  # the quota counts what gVisor needs for itself as well
        assert amount(getattr(resources, f"{kind}_limit")) <= amount(most[kind])
        for side in ("request", "limit"):
            wanted = amount(getattr(resources, f"{kind}_{side}")) + amount(overhead[kind])
            assert wanted * int(hard["pods"]) <= amount(hard[f"{side}s.{kind}"])


@needs_kubectl
@pytest.mark.parametrize(
    ("folder", "names"), [("base", "cpu"), ("overlays/gpu", "cpu rollout")], ids=["base", "gpu"]
)
def test_an_overlay_of_ones_own_names_every_image_by_digest(folder, names, tmp_path):
    """As k8s/README.md says it: nothing is left by tag."""
    digest = "sha256:" + 64 * "7"
    pinned = [
        {"name": f"espalier-{name}", "newName": f"registry.example/{name}", "digest": digest}
        for name in names.split()
    ]
    base = os.path.relpath(K8S / folder, tmp_path)  # kustomize takes no absolute path
    overlay = {"kind": "Kustomization", "resources": [base], "images": pinned}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    pods = pod_templates(rendered(tmp_path))
    found = {container["image"] for pod in pods for container in containers(pod.spec)}
    assert found == {f"registry.example/{name}@{digest}" for name in names.split()}


@needs_kubectl
@pytest.mark.parametrize(
    ("folder", "classes"), [("base", "gvisor"), ("overlays/local", "gvisor runc")]
)
def test_admission_demands_a_runtime_class_that_is_installed(folder, classes):
    policy = named(rendered(folder), "ValidatingAdmissionPolicy", "espalier-sandboxes")
    demand = policy["spec"]["validations"][0]["expression"]
    assert demand.startswith("has(object.spec.runtimeClassName) && ")
    assert set(re.findall("'(.*?)'", demand)) == set(classes.split())
    assert _names(rendered(folder), "RuntimeClass", None) == set(classes.split())
    # on labelled nodes, where there are several
    scheduling = named(rendered(folder), "RuntimeClass", "gvisor").get("scheduling")
    assert (scheduling is None) is (folder in LOCAL)
    if scheduling:
        (label,) = scheduling["nodeSelector"]
        assert f"kubectl label node NAME {label}=true" in (K8S / "README.md").read_text()
        assert [one["key"] for one in scheduling["tolerations"]] == [label]

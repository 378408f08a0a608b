"""Names that have to agree: between objects, with the code, with a profile's defaults."""

import os

import pytest
import yaml

from espalier.cluster.objects import pods, serving
from espalier.cluster.objects.pods import S3_MOUNT
from espalier.config import KubernetesConfig
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
    read = {
        name
        for pod in pod_templates(rendered(folder))
        for name, _ in _references(pod.spec, "secret")
    } | {
        volume["secret"]["secretName"]
        for pod in pod_templates(rendered(folder))
        for volume in pod.spec.get("volumes", ())
        if "secret" in volume
    }
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
def test_every_object_has_our_label_and_namespace(folder):
    ours = {SETTINGS.pipeline_namespace, SETTINGS.sandbox_namespace}
    for item in rendered(folder):
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "espalier", item["metadata"]["name"]
        assert item["metadata"].get("namespace") in {None, *ours}
    for pod in pod_templates(rendered(folder)):
        assert pod.labels.keys() >= {"app.kubernetes.io/name", "app.kubernetes.io/component"}


@needs_kubectl
@every_overlay
def test_namespaces_hold_their_pods_to_the_pod_security_standards(folder):
    level = {
        item["metadata"]["name"]: item["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for item in of_kind(rendered(folder), "Namespace")
    }
    assert level == {
        SETTINGS.pipeline_namespace: "baseline",
        SETTINGS.sandbox_namespace: "restricted",
    }


@needs_kubectl
@every_overlay
def test_a_profile_left_alone_finds_what_was_installed(folder):
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


@needs_kubectl
@every_overlay
def test_sandboxes_of_default_size_fit_the_limits_of_their_namespace(folder):
    from espalier.config.cluster import amount

    objects = [
        o for o in rendered(folder) if o["metadata"].get("namespace") == "espalier-sandboxes"
    ]
    (limits,) = of_kind(objects, "LimitRange")
    (quota,) = of_kind(objects, "ResourceQuota")
    most, hard, ours = limits["spec"]["limits"][0]["max"], quota["spec"]["hard"], SETTINGS.sandboxes
    resources = ours.resources
    for kind, wanted in (
        ("cpu", resources.cpu_limit),
        ("memory", resources.memory_limit),
        ("ephemeral-storage", resources.disk_limit),
    ):
        assert amount(wanted) <= amount(most[kind])
    pods_allowed = int(hard["pods"])
    # that of the base, which is more than a platform's own class may count
    overhead = named(rendered("base"), "RuntimeClass", "gvisor")["overhead"]["podFixed"]
    for kind in ("cpu", "memory"):  # the quota counts what gVisor needs for itself as well
        for side in ("request", "limit"):
            wanted = amount(getattr(resources, f"{kind}_{side}")) + amount(overhead[kind])
            assert wanted * pods_allowed <= amount(hard[f"{side}s.{kind}"])
    assert amount(resources.cpu_request) * pods_allowed <= amount(hard["requests.cpu"])
    assert amount(resources.memory_request) * pods_allowed <= amount(hard["requests.memory"])
    assert amount(resources.cpu_limit) * pods_allowed <= amount(hard["limits.cpu"])
    assert amount(resources.memory_limit) * pods_allowed <= amount(hard["limits.memory"])


@needs_kubectl
@every_overlay
def test_gvisor_runs_on_labelled_nodes_but_where_there_is_one(folder):
    if folder == "overlays/gke":
        assert of_kind(rendered(folder), "RuntimeClass") == []
        return
    gvisor = named(rendered(folder), "RuntimeClass", "gvisor")
    assert ("scheduling" in gvisor) is (folder not in LOCAL)
    if "scheduling" in gvisor:
        (label,) = gvisor["scheduling"]["nodeSelector"]
        assert f"kubectl label node NAME {label}=true" in (K8S / "README.md").read_text()
        assert [one["key"] for one in gvisor["scheduling"]["tolerations"]] == [label]


@needs_kubectl
def test_an_overlay_of_ones_own_names_every_image_by_digest(tmp_path):
    """As k8s/README.md says it: the images of both overlays, and nothing is left by tag."""
    digest = "sha256:" + 64 * "7"
    names = {"base": ["espalier-cpu"], "overlays/gpu": ["espalier-cpu", "espalier-rollout"]}
    for folder, images in names.items():
        overlay = K8S / folder
        pinned = [
            {"name": name, "newName": f"registry.example/{name}", "digest": digest}
            for name in images
        ]
        at = tmp_path / folder.replace("/", "-")
        at.mkdir()
        # kustomize takes a path that is relative to the overlay
        base = os.path.relpath(overlay, at)
        (at / "kustomization.yaml").write_text(
            yaml.safe_dump({"kind": "Kustomization", "resources": [base], "images": pinned})
        )
        found = {
            container["image"]
            for pod in pod_templates(rendered(at))
            for container in containers(pod.spec)
        }
        assert found == {f"registry.example/{name}@{digest}" for name in images}


@needs_kubectl
@every_overlay
def test_the_controller_rolls_the_deployment_that_is_installed(folder):
    deployment = named(rendered(folder), "Deployment", serving.DEPLOYMENT)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["name"] == serving.CONTAINER
    # a field that the manifests set as well would be set back by the next kubectl apply
    assert serving.MODEL_VARIABLE not in {variable["name"] for variable in container["env"]}
    assert "annotations" not in deployment["spec"]["template"]["metadata"]


@needs_kubectl
def test_the_inference_server_sees_policies_where_the_trainer_writes_them():
    (vllm,) = named(rendered("overlays/gpu"), "Deployment", "espalier-rollout")["spec"]["template"][
        "spec"
    ]["containers"]
    assert {"name": "workspace", "mountPath": S3_MOUNT, "readOnly": True} in vllm["volumeMounts"]


@needs_kubectl
def test_the_kueue_queue_takes_jobs_of_the_pipeline_alone():
    objects = rendered("overlays/kueue")
    (queue,) = of_kind(objects, "ClusterQueue")
    (local,) = of_kind(objects, "LocalQueue")
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    assert local["metadata"]["namespace"] == SETTINGS.pipeline_namespace
    assert queue["spec"]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": SETTINGS.pipeline_namespace
    }


@needs_kubectl
@pytest.mark.parametrize(
    ("folder", "classes"), [("base", "gvisor"), ("overlays/local", "gvisor runc")]
)
def test_admission_demands_a_runtime_class_that_is_installed(folder, classes):
    policy = named(rendered(folder), "ValidatingAdmissionPolicy", "espalier-sandboxes")
    demand = policy["spec"]["validations"][0]["expression"]
    assert demand.startswith("has(object.spec.runtimeClassName) && ")
    assert all(f"'{name}'" in demand for name in classes.split())
    assert demand.count("'") == 2 * len(classes.split())
    assert _names(rendered(folder), "RuntimeClass", None) == set(classes.split())

import copy

import pytest

from espalier.config.cluster import amount
from tests.unit.cluster.objects.samples import NODES, PARTIAL, every_manifest, job
from tests.unit.k8s.pod_security import violations
from tests.unit.k8s.rendering import (
    containers,
    every_overlay,
    needs_kubectl,
    of_kind,
    pod_templates,
    rendered,
)

MANIFESTS = [made for name, made in every_manifest().items() if name not in PARTIAL]
GENERATED = pod_templates([*MANIFESTS, job("train", NODES)])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda spec, _: spec.update(hostNetwork=True), "hostNetwork is set"),
        (lambda spec, _: spec["volumes"].append({"name": "x", "hostPath": {}}), "hostPath"),
        (lambda spec, _: spec["securityContext"].update(runAsUser=0), "sandbox: may be root"),
        (lambda spec, _: spec["securityContext"].pop("seccompProfile"), "no seccomp profile"),
        (lambda _, own: own.update(privileged=True), "sandbox: privileged"),
        (lambda _, own: own.pop("allowPrivilegeEscalation"), "sandbox: may escalate"),
        (lambda _, own: own.pop("capabilities"), "sandbox: keeps capabilities"),
        (lambda _, own: own["capabilities"].update(add=["SYS_ADMIN"]), "adds capabilities"),
    ],
)
def test_the_checklist_sees_each_way_to_break_the_standard(change, complaint):
    spec = copy.deepcopy(every_manifest()["sandbox-pod"]["spec"])
    change(spec, spec["containers"][0]["securityContext"])
    assert [fault for fault in violations(spec) if complaint in fault]


@pytest.mark.parametrize("pod", GENERATED, ids=lambda pod: pod.owner)
def test_a_pod_of_a_run_is_restricted_limited_and_pinned(pod):
    _check(pod)


@needs_kubectl
@every_overlay
def test_pods_of_an_overlay_are_restricted_limited_pinned_and_probed(folder):
    for pod in pod_templates(rendered(folder)):
        _check(pod)
        for container in pod.spec["containers"]:
            if "ports" in container:
                assert container.keys() >= {"readinessProbe", "livenessProbe"}, pod.owner


def _check(pod):
    assert violations(pod.spec) == [], pod.owner
    assert isinstance(pod.spec["securityContext"]["runAsUser"], int), pod.owner
    assert pod.spec["enableServiceLinks"] is False, pod.owner
    for container in containers(pod.spec):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True, pod.owner
        requests, limits = (container["resources"][k] for k in ("requests", "limits"))
        assert requests.keys() >= {"cpu", "memory"}, pod.owner
        assert limits.keys() >= {"cpu", "memory", "ephemeral-storage"}, pod.owner
        assert all(amount(requests[k]) <= amount(limits[k]) for k in requests), pod.owner
        image = container["image"]
        assert "@sha256:" in image or image.rpartition(":")[2] not in ("", "latest", image)
    volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
    for volume in volumes.values():
        assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], pod.owner
    mounted = {m["name"] for c in containers(pod.spec) for m in c.get("volumeMounts", [])}
    assert mounted == volumes.keys(), pod.owner


@needs_kubectl
@every_overlay
def test_sandboxes_are_the_first_to_be_evicted(folder):
    classes = {
        c["metadata"]["name"]: c["value"] for c in of_kind(rendered(folder), "PriorityClass")
    }
    assert min(classes, key=classes.get) == "espalier-sandbox"
    assert classes["espalier-sandbox"] < 0  # below pods that name no class
    pods = [*pod_templates(rendered(folder)), *GENERATED]
    assert {pod.spec["priorityClassName"] for pod in pods} <= classes.keys()

import copy

import pytest

from espalier.config.cluster import amount
from tests.unit.cluster.objects.samples import PARTIAL, every_manifest
from tests.unit.k8s.pod_security import violations
from tests.unit.k8s.rendering import (
    containers,
    every_overlay,
    needs_kubectl,
    of_kind,
    pod_templates,
    rendered,
)

GENERATED = pod_templates([m for name, m in every_manifest().items() if name not in PARTIAL])


def _pods(folder):
    return [*pod_templates(rendered(folder)), *GENERATED]


def _ids(pod):
    return pod.owner


@pytest.mark.parametrize("pod", GENERATED, ids=_ids)
def test_a_pod_that_a_run_creates_meets_the_restricted_standard(pod):
    assert violations(pod.spec) == []


@needs_kubectl
@every_overlay
def test_every_pod_of_an_overlay_meets_the_restricted_standard(folder):
    assert {pod.owner: violations(pod.spec) for pod in _pods(folder) if violations(pod.spec)} == {}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda spec, _: spec.update(hostNetwork=True), "hostNetwork is set"),
        (
            lambda spec, _: spec["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
            "volume x is hostPath",
        ),
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


@needs_kubectl
@every_overlay
def test_containers_have_read_only_roots_and_numeric_users(folder):
    for pod in _pods(folder):
        assert isinstance(pod.spec["securityContext"]["runAsUser"], int), pod.owner
        for container in containers(pod.spec):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, pod.owner


@needs_kubectl
@every_overlay
def test_every_container_is_limited_in_cpu_memory_and_disk(folder):
    for pod in _pods(folder):
        for container in containers(pod.spec):
            requests, limits = (container["resources"][k] for k in ("requests", "limits"))
            assert requests.keys() >= {"cpu", "memory"}, pod.owner
            assert limits.keys() >= {"cpu", "memory", "ephemeral-storage"}, pod.owner
            assert all(amount(requests[k]) <= amount(limits[k]) for k in requests), pod.owner


@needs_kubectl
@every_overlay
def test_empty_volumes_have_sizes_and_mounts_have_volumes(folder):
    for pod in _pods(folder):
        volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
        for volume in volumes.values():
            assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], pod.owner
        mounted = {m["name"] for c in containers(pod.spec) for m in c.get("volumeMounts", [])}
        assert mounted == volumes.keys(), pod.owner


@needs_kubectl
@every_overlay
def test_every_image_is_pinned(folder):
    for pod in _pods(folder):
        for container in containers(pod.spec):
            image = container["image"]
            assert "@sha256:" in image or image.rpartition(":")[2] not in ("", "latest", image)


@needs_kubectl
@every_overlay
def test_no_pod_gets_service_variables_it_does_not_want(folder):
    assert all(pod.spec["enableServiceLinks"] is False for pod in _pods(folder))


@needs_kubectl
@every_overlay
def test_sandboxes_are_the_first_to_be_evicted(folder):
    classes = {
        c["metadata"]["name"]: c["value"] for c in of_kind(rendered(folder), "PriorityClass")
    }
    assert min(classes, key=classes.get) == "espalier-sandbox"
    assert classes["espalier-sandbox"] < 0  # below pods that name no class
    assert {pod.spec["priorityClassName"] for pod in _pods(folder)} <= classes.keys()


@needs_kubectl
@every_overlay
def test_what_serves_http_is_probed(folder):
    for pod in pod_templates(rendered(folder)):
        for container in pod.spec["containers"]:
            if "ports" in container:
                assert container.keys() >= {"readinessProbe", "livenessProbe"}, pod.owner

import copy

import jsonschema
import pytest

from tests.unit.cluster.objects.samples import PARTIAL, every_manifest
from tests.unit.k8s.custom_resources import is_custom, whole
from tests.unit.k8s.kinds import faults, template_faults
from tests.unit.k8s.rendering import every_overlay, needs_kubectl, of_kind, pod_templates, rendered

MANIFESTS = every_manifest()
BUILT_IN = sorted(name for name, manifest in MANIFESTS.items() if not is_custom(manifest))
CUSTOM = sorted(MANIFESTS.keys() - set(BUILT_IN))


def _check(manifest):
    jsonschema.validate(manifest, whole(manifest))
    for pod in pod_templates([manifest]):
        template = {"metadata": {"labels": pod.labels}, "spec": pod.spec}
        assert template_faults(template) == []


@needs_kubectl
@every_overlay
def test_every_object_is_one_of_its_kind(folder):
    objects = rendered(folder)
    for item in objects:
        if is_custom(item):
            _check(item)
        else:
            assert faults(item) == [], item["metadata"]["name"]


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - PARTIAL))
def test_built_in_objects_of_a_run_fit_their_kind(name):
    assert faults(MANIFESTS[name]) == []


@pytest.mark.parametrize("name", CUSTOM)
def test_custom_objects_of_a_run_fit_their_schema(name):
    _check(MANIFESTS[name])


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        (("spec", "hostnmae"), "x", "spec.hostnmae is no field of V1PodSpec"),
        (("spec", "activeDeadlineSeconds"), "60", "is no int"),
        (("spec", "volumes"), {}, "spec.volumes is no list"),
        (("spec", "volumes"), [{"emptyDir": {}}], "`name`, must not be `None`"),
    ],
)
def test_the_models_see_a_field_that_is_not_one(place, value, complaint):
    manifest = copy.deepcopy(MANIFESTS["sandbox-pod"])
    section, key = place
    manifest[section][key] = value
    assert any(complaint in fault for fault in faults(manifest))


@needs_kubectl
def test_the_kueue_queue_is_the_pipelines_and_has_every_flavor():
    objects = rendered("overlays/kueue")
    (queue,), (local,) = (of_kind(objects, kind) for kind in ("ClusterQueue", "LocalQueue"))
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    selected = queue["spec"]["namespaceSelector"]["matchLabels"]
    assert selected == {"kubernetes.io/metadata.name": local["metadata"]["namespace"]}
    flavors = {item["metadata"]["name"] for item in of_kind(objects, "ResourceFlavor")}
    for group in queue["spec"]["resourceGroups"]:
        assert {flavor["name"] for flavor in group["flavors"]} == flavors
        for flavor in group["flavors"]:
            assert [r["name"] for r in flavor["resources"]] == group["coveredResources"]

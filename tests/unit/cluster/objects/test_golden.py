import pytest

from tests.unit.cluster.objects.golden import FOLDER, UNWRITTEN, spelt
from tests.unit.cluster.objects.samples import every_manifest

MANIFESTS = every_manifest()
WRITTEN = sorted(MANIFESTS.keys() - {UNWRITTEN})


@pytest.mark.parametrize("name", WRITTEN)
def test_a_manifest_is_what_its_golden_file_says(name):
    assert spelt(MANIFESTS[name]) == (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def test_every_golden_file_has_a_manifest():
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == WRITTEN


def test_the_template_of_sandboxes_makes_a_sandboxs_pod():
    pod, own = MANIFESTS["sandbox-pod"], dict(MANIFESTS[UNWRITTEN]["spec"])
    users = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 65532)
    spec = pod["spec"] | {"securityContext": pod["spec"]["securityContext"] | users}
    assert own.pop("podTemplate") == {
        "metadata": {"labels": pod["metadata"]["labels"]}, "spec": spec
    }  # fmt: skip
    policies = dict.fromkeys(("envVarsInjectionPolicy", "volumeClaimTemplatesPolicy"), "Disallowed")
    assert own == policies | {"networkPolicyManagement": "Unmanaged", "service": False}

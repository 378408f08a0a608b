import pytest

from tests.unit.cluster.objects.golden import FOLDER, spelt
from tests.unit.cluster.objects.samples import every_manifest

MANIFESTS = every_manifest()


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_what_its_golden_file_says(name):
    assert spelt(MANIFESTS[name]) == (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def test_every_golden_file_has_a_manifest():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == MANIFESTS.keys()

"""Every custom object that espalier makes, against the CRD files of the checkouts.

No cluster is needed for it: ESPALIER_TEST_NEIGHBOURS_SOURCES=DIR pytest
tests/cluster/neighbours/test_objects.py
"""

import copy
import os
from pathlib import Path

import jsonschema
import pytest
from kubernetes.client import models

from tests.cluster.neighbours import crds, sources
from tests.cluster.neighbours.backend import FOLDER
from tests.unit.cluster.objects.samples import every_manifest
from tests.unit.k8s.rendering import FOLDERS, needs_kubectl, rendered


def _is_custom(manifest):
    version = manifest["apiVersion"].rpartition("/")[2]
    return not hasattr(models, f"{version.capitalize()}{manifest['kind']}")


MANIFESTS = {name: one for name, one in every_manifest().items() if _is_custom(one)}


@pytest.fixture(scope="module")
def schemas():
    if FOLDER not in os.environ:
        pytest.skip(f"{FOLDER} is not set: `make test-neighbours SOURCES=DIR` sets it")
    found = sources.found_in(Path(os.environ[FOLDER]))
    files = [path for one in sources.NEIGHBOURS if one.name in found.modules
             for path in found.crds(one)]  # fmt: skip
    return crds.index(files)


def _faults(manifest, schemas):
    kind = manifest["apiVersion"], manifest["kind"]
    assert kind in schemas, f"{kind} is in no CRD file of the checkouts"
    validator = jsonschema.Draft202012Validator(crds.whole(schemas[kind]))
    found = [f"{one.json_path}: {one.message[:300]}" for one in validator.iter_errors(manifest)]
    return found + crds.repeated(schemas[kind], manifest)


@pytest.mark.parametrize("name", sorted(MANIFESTS))
def test_objects_of_a_run_have_only_published_fields(name, schemas):
    assert _faults(MANIFESTS[name], schemas) == []


@needs_kubectl
@pytest.mark.parametrize("folder", FOLDERS)
def test_objects_of_overlays_have_only_published_fields(folder, schemas):
    for item in filter(_is_custom, rendered(folder)):
        assert _faults(item, schemas) == []


@pytest.mark.parametrize("name", sorted(MANIFESTS))
def test_an_unknown_field_is_refused(name, schemas):
    manifest = copy.deepcopy(MANIFESTS[name])
    manifest["spec"]["replica"] = 1
    (fault,) = _faults(manifest, schemas)
    assert "'replica' was unexpected" in fault


def test_two_entries_of_one_key_are_refused(schemas):
    manifest = copy.deepcopy(MANIFESTS["train-job-on-gpus"])
    entries = manifest["spec"]["trainer"]["env"]
    entries.append(entries[0])
    (fault,) = _faults(manifest, schemas)
    assert "more than once" in fault


def test_an_unknown_field_deep_in_a_pod_is_refused(schemas):
    manifest = copy.deepcopy(MANIFESTS["ray-job"])
    (group,) = manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    group["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    (fault,) = _faults(manifest, schemas)
    assert "'imagePullPolice' was unexpected" in fault

"""What `k8s/` and a run create, against the API server's own idea of it (server-side dry run).

Custom resources have no controller and no definition here: they are left to their hand-written
schemas (tests/unit/k8s), and the server says that it does not know them.
"""

import subprocess

import jsonschema
import pytest
import yaml

from tests.unit.cluster.objects.samples import PARTIAL, every_manifest
from tests.unit.k8s.custom_resources import is_custom, whole
from tests.unit.k8s.rendering import every_overlay, rendered

GENERATED = {name: item for name, item in every_manifest().items() if name not in PARTIAL}
OWNED = {name: item for name, item in GENERATED.items() if not is_custom(item)}
CUSTOM = [*rendered("overlays/kueue"), *GENERATED.values()]


def _dry_run(objects):
    """As `kubectl apply` would: the server checks, admits and changes nothing."""
    return subprocess.run(
        ["kubectl", "apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", "-"],
        input=yaml.safe_dump_all(objects),
        capture_output=True,
        text=True,
        check=False,
    )


@every_overlay
def test_the_api_server_takes_every_object_of_an_overlay(administrator, folder):
    objects = [item for item in rendered(folder) if not is_custom(item)]
    done = _dry_run(objects)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(objects)


@pytest.mark.parametrize("name", sorted(OWNED))
def test_the_api_server_takes_what_a_run_creates(administrator, name):
    done = _dry_run([OWNED[name]])
    assert done.returncode == 0, done.stderr


def test_a_misspelt_field_is_refused(administrator):
    manifest = {**OWNED["sandbox-lease"], "spec": {"leaseDuration": 3}}
    done = _dry_run([manifest])
    assert done.returncode != 0
    assert "leaseDuration" in done.stderr


@pytest.mark.parametrize(
    "manifest",
    [item for item in CUSTOM if is_custom(item)],
    ids=lambda item: f"{item['kind']}-{item['metadata']['name']}",
)
def test_custom_objects_fit_our_schema_without_a_crd(administrator, manifest):
    jsonschema.validate(manifest, whole(manifest))
    done = _dry_run([manifest])
    assert done.returncode == 0 or f'no matches for kind "{manifest["kind"]}"' in done.stderr

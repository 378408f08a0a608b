"""What `k8s/` and a run create, against the API server's own idea of it (server-side dry run).

Custom resources have no controller and no definition here: they are left to their hand-written
schemas (tests/unit/k8s), and the server says that it does not know them.
"""

import subprocess

import jsonschema
import pytest
import yaml
from kubernetes import client

from tests.unit.cluster.objects.samples import PARTIAL, every_manifest
from tests.unit.k8s.allowed_verbs import PIPELINE
from tests.unit.k8s.custom_resources import is_custom, whole
from tests.unit.k8s.network_model import Network, Outside, Pod, Port
from tests.unit.k8s.rendering import every_overlay, named, of_kind, rendered

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


def test_the_local_overlay_lets_its_pods_reach_this_api_server(own_cluster, administrator):
    """Both by the service's address and by the server's own, whichever a network plugin matches."""
    service = client.CoreV1Api(administrator).read_namespaced_service("kubernetes", "default")
    slices = client.DiscoveryV1Api(administrator).list_namespaced_endpoint_slice(
        "default", label_selector="kubernetes.io/service-name=kubernetes"
    )
    places = [(service.spec.cluster_ip, port.port) for port in service.spec.ports]
    for one in slices.items:
        addresses = [address for endpoint in one.endpoints for address in endpoint.addresses]
        places += [(address, port.port) for address in addresses for port in one.ports]
    assert len(places) == 2, places
    network = Network(of_kind(rendered("overlays/local"), "NetworkPolicy"), {PIPELINE: {}})
    trainer = Pod("trainer", PIPELINE, {"espalier.dev/may-reach-kubernetes": "true"})
    for address, port in places:
        assert network.connects(trainer, Outside("api-server", address), Port(port)), address


def test_the_class_of_gvisor_adds_its_costs_and_nodes(administrator):
    """The class of the base under another name: the server completes a pod that asks for it."""
    nodes = client.NodeV1Api(administrator)
    base = named(rendered("base"), "RuntimeClass", "gvisor")
    nodes.create_runtime_class({**base, "metadata": {"name": "gvisor-of-tests"}})
    pod = {
        "metadata": {"name": "x"},
        "spec": {
            "runtimeClassName": "gvisor-of-tests",
            "nodeSelector": {"pool": "tools"},
            "tolerations": [{"key": "mine", "operator": "Exists"}],
            "containers": [{"name": "x", "image": "x:1"}],
        },
    }
    try:
        core = client.CoreV1Api(administrator)
        made = core.create_namespaced_pod("default", pod, dry_run="All").spec
    finally:
        nodes.delete_runtime_class("gvisor-of-tests")
    assert made.overhead == base["overhead"]["podFixed"]
    assert made.node_selector == {"pool": "tools", **base["scheduling"]["nodeSelector"]}
    assert {one.key for one in made.tolerations} >= {"mine", "espalier.dev/gvisor"}


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

"""k8s/monitoring and k8s/backup in an overlay of a user's own."""

import os
import subprocess

import pytest
import yaml

from espalier.cluster.objects.names import RUN_LABEL, STAGE_LABEL
from espalier.cluster.objects.pods import ENDPOINT_KEYS, KUBEFLOW_ENDPOINTS, METRICS_PORT
from espalier.monitoring import PORT_VARIABLE
from tests.unit.k8s.network_model import Network, Pod, Port
from tests.unit.k8s.rendering import K8S, named, needs_kubectl, of_kind, rendered
from tests.unit.k8s.test_network_policies import NAMESPACES, PIPELINE

pytestmark = needs_kubectl

PORT = 9464
SCRAPER = Pod("prometheus", "monitoring", {"app.kubernetes.io/name": "prometheus"})
NEIGHBOUR = Pod("prometheus", "elsewhere", SCRAPER.labels)
PODS = {
    "stage": (Pod("stage", PIPELINE, {STAGE_LABEL: "train"}), PORT),
    "serving": (Pod("serving", PIPELINE, {"app.kubernetes.io/name": "espalier-serving"}), 8000),
    "controller": (
        Pod("controller", PIPELINE, {"app.kubernetes.io/name": "espalier-serving-controller"}),
        8081,
    ),
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """The base with both components, as an overlay of a user's own names them."""
    folder = tmp_path_factory.mktemp("overlay")
    parts = ("monitoring", "monitoring/operator", "backup")
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(K8S / "base", folder)],
        "components": [os.path.relpath(K8S / part, folder) for part in parts],
        "images": [{"name": "espalier-cpu", "newName": "registry.example/cpu", "newTag": "7"}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


def test_stages_learn_the_port_by_the_config_map(objects):
    """Steps of Jobs read all of it, those of Kubeflow the keys by name, each where it is there."""
    data = named(objects, "ConfigMap", "espalier-endpoints")["data"]
    assert data[PORT_VARIABLE] == str(PORT)
    assert METRICS_PORT == PORT_VARIABLE
    assert KUBEFLOW_ENDPOINTS[PORT_VARIABLE] == PORT_VARIABLE
    assert PORT_VARIABLE not in ENDPOINT_KEYS
    assert PORT_VARIABLE not in named(rendered("base"), "ConfigMap", "espalier-endpoints")["data"]


@pytest.mark.parametrize("pod", PODS)
def test_only_a_labelled_namespace_scrapes(objects, pod):
    namespaces = NAMESPACES | {"monitoring": {"espalier.dev/may-scrape": "true"}}
    network = Network(of_kind(objects, "NetworkPolicy"), namespaces)
    target, port = PODS[pod]
    assert network.connects(SCRAPER, target, Port(port))
    assert not network.connects(NEIGHBOUR, target, Port(port))
    others = {5000, 6443, 8080, *(number for _, number in PODS.values())} - {port}
    assert not any(network.connects(SCRAPER, target, Port(other)) for other in others)


def test_what_scrapes_reaches_neither_mlflow_nor_sandboxes(objects):
    namespaces = NAMESPACES | {"monitoring": {"espalier.dev/may-scrape": "true"}}
    network = Network(of_kind(objects, "NetworkPolicy"), namespaces)
    mlflow = Pod("mlflow", PIPELINE, {"app.kubernetes.io/name": "espalier-mlflow"})
    sandbox = Pod("s", "espalier-sandboxes", {"app.kubernetes.io/name": "espalier-sandbox"})
    for port in (5000, 8080, PORT):
        assert not network.connects(SCRAPER, mlflow, Port(port))
        assert not network.connects(SCRAPER, sandbox, Port(port))


def test_monitors_name_ports_that_the_pods_have(objects):
    monitors = {item["metadata"]["name"]: item["spec"] for item in of_kind(objects, "PodMonitor")}
    for name in ("espalier-serving", "espalier-serving-controller"):
        spec = named(objects, "Deployment", name)["spec"]["template"]["spec"]
        ports = {port["name"] for port in spec["containers"][0]["ports"]}
        (endpoint,) = monitors[name]["podMetricsEndpoints"]
        assert endpoint["port"] in ports
    stages = monitors["espalier-stages"]
    assert stages["selector"]["matchExpressions"][0]["key"] == STAGE_LABEL
    assert stages["podTargetLabels"] == [RUN_LABEL]
    (endpoint,) = stages["podMetricsEndpoints"]
    assert endpoint["relabelings"][-1]["replacement"] == f"$1:{PORT}"


def test_grafanas_sidecar_finds_the_dashboard(objects):
    found = named(objects, "ConfigMap", "espalier-dashboard")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"]["espalier.json"] == (K8S / "monitoring/dashboard.json").read_text()


def test_backups_read_the_database_beside_mlflow(objects):
    pod = named(objects, "CronJob", "espalier-backup")["spec"]["jobTemplate"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "registry.example/cpu:7"
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "database"]
    assert mount["readOnly"] is True
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for spec in (
            pod["spec"],
            named(objects, "Deployment", "espalier-mlflow")["spec"]["template"]["spec"],
        )
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {"espalier-mlflow"}


def test_a_restore_never_starts_by_the_clock(objects):
    spec = named(objects, "CronJob", "espalier-restore")["spec"]
    assert spec["suspend"] is True
    assert spec["concurrencyPolicy"] == "Forbid"

"""k8s/monitoring and k8s/backup in an overlay of a user's own."""

import os

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
MLFLOW = Pod("mlflow", PIPELINE, {"app.kubernetes.io/name": "espalier-mlflow"})
SANDBOX = Pod("s", "espalier-sandboxes", {"app.kubernetes.io/name": "espalier-sandbox"})
PODS = [
    (Pod("stage", PIPELINE, {STAGE_LABEL: "train"}), PORT),
    (Pod("serving", PIPELINE, {"app.kubernetes.io/name": "espalier-serving"}), 8000),
    (Pod("c", PIPELINE, {"app.kubernetes.io/name": "espalier-serving-controller"}), 8081),
]


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
    return rendered(folder)


def test_stages_learn_the_port_by_the_config_map(objects):
    data = named(objects, "ConfigMap", "espalier-endpoints")["data"]
    assert data[PORT_VARIABLE] == str(PORT)
    assert KUBEFLOW_ENDPOINTS[PORT_VARIABLE] == METRICS_PORT == PORT_VARIABLE
    assert PORT_VARIABLE not in ENDPOINT_KEYS
    assert PORT_VARIABLE not in named(rendered("base"), "ConfigMap", "espalier-endpoints")["data"]


def test_only_a_labelled_namespace_scrapes_and_nothing_but_metrics(objects):
    namespaces = NAMESPACES | {"monitoring": {"espalier.dev/may-scrape": "true"}}
    network = Network(of_kind(objects, "NetworkPolicy"), namespaces)
    ports = {5000, 6443, 8080, *(number for _, number in PODS)}
    for pod, own in [*PODS, (MLFLOW, None), (SANDBOX, None)]:
        assert {n for n in ports if network.connects(SCRAPER, pod, Port(n))} == {own} - {None}
        assert not any(network.connects(NEIGHBOUR, pod, Port(n)) for n in ports)


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


def job_of(objects, name):
    return named(objects, "CronJob", name)["spec"]["jobTemplate"]["spec"]


def test_backups_only_read_mlflows_database_and_restores_are_by_hand(objects):
    pod = job_of(objects, "espalier-backup")["template"]["spec"]
    server = named(objects, "Deployment", "espalier-mlflow")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "registry.example/cpu:7"
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "database"]
    assert mount["readOnly"] is True
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["volumes"] + server["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {"espalier-mlflow"}
    restore = named(objects, "CronJob", "espalier-restore")["spec"]
    assert (restore["suspend"], restore["concurrencyPolicy"]) == (True, "Forbid")

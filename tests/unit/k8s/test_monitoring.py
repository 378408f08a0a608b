"""k8s/monitoring and k8s/backup in an overlay of a user's own."""

import os
import re
import subprocess
from pathlib import Path

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


def job_of(objects, name):
    return named(objects, "CronJob", name)["spec"]["jobTemplate"]["spec"]


JOBS = pytest.mark.parametrize("name", ["espalier-backup", "espalier-restore"])


@JOBS
def test_jobs_of_backups_are_not_tried_in_vain(objects, name):
    """What the scripts refuse stays refused; a server that was away may be back."""
    ignored, refused = job_of(objects, name)["podFailurePolicy"]["rules"]
    assert ignored["action"] == "Ignore"
    assert ignored["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert refused["action"] == "FailJob"
    assert refused["onExitCodes"]["values"] == [2]
    (container,) = job_of(objects, name)["template"]["spec"]["containers"]
    assert refused["onExitCodes"]["containerName"] == container["name"]


@JOBS
def test_scripts_of_backups_lie_where_their_jobs_look(objects, name):
    pod = job_of(objects, name)["template"]["spec"]
    (container,) = pod["containers"]
    shell, script = container["command"]
    assert shell == "bash"
    data = named(objects, "ConfigMap", "espalier-backup")["data"]
    assert set(data) == {
        "backup.sh", "restore.sh", "settings.sh", "rclone.conf", "files.filter", "manifests.filter",
    }  # fmt: skip
    assert Path(script).name in data
    (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == str(Path(script).parent)]
    (volume,) = [v for v in pod["volumes"] if v["name"] == mount["name"]]
    assert volume["configMap"]["name"] == "espalier-backup"


@JOBS
def test_scripts_of_backups_find_what_they_ask_the_environment_for(objects, name):
    """Variables of the environment are in capitals, those of the scripts are not."""
    (container,) = job_of(objects, name)["template"]["spec"]["containers"]
    (source,) = container["envFrom"]
    given = named(objects, "ConfigMap", source["configMapRef"]["name"])["data"].keys()
    given |= {variable["name"] for variable in container["env"]}
    data = named(objects, "ConfigMap", "espalier-backup")["data"]
    script = data["settings.sh"] + data[Path(container["command"][1]).name]
    asked = set(re.findall(r"\$\{?([A-Z][A-Z0-9_]+)", script))
    by_hand, by_an_overlay = {"BACKUP_NAME"}, {"AWS_CA_BUNDLE"}
    assert asked - given <= by_hand | by_an_overlay
    server = named(objects, "Deployment", "espalier-mlflow")["spec"]["template"]["spec"]
    alike = {"MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION"}
    assert values_of(container, alike) == values_of(server["containers"][0], alike)


def values_of(container, names):
    return {one["name"]: one["value"] for one in container["env"] if one["name"] in names}


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

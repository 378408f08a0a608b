"""Kubeflow's own manifests, rendered from its checkout, and changed where this cluster differs.

multi-user     the API server asks Kubernetes who calls and what it may; the namespace of the
               pipeline is a user's profile, with what Kubeflow's profile controller would put
               into it
single-user    runs are in Kubeflow's own namespace, and nobody is asked who they are
"""

import re
import shutil
from typing import NamedTuple

import yaml

from tests.cluster import objects
from tests.cluster.images import PIPELINE as PIPELINE_IMAGE
from tests.cluster.kubeflow import images, pages, servers
from tests.cluster.kubeflow.sources import kept_in
from tests.cluster.network import NODE_ADDRESS
from tests.cluster.places import REPOSITORY
from tests.unit.k8s.allowed_verbs import PIPELINE

NAMESPACE = "kubeflow"
MULTI_USER, SINGLE_USER = MODES = ("multi-user", "single-user")
RUNNER = "default-editor"
"""The account that Kubeflow gives a profile's steps unless a run names another."""
USER = "user@example.com"
"""Whose profile the pipeline's namespace is, as the proxy before Kubeflow names him in a header."""
CONFIG = "ml-pipeline-config"
"""ConfigMap of the API server's settings, which its own image has as a file."""
CONFIG_FILE = "config.json"
MODE_LABEL = "espalier.dev/kubeflow-mode"
"""Of that ConfigMap, as the manifests themselves say the mode in many places."""
_CONFIG_FOLDER = "/kubeflow/config"
_CONFIG_SOURCE = "backend/src/apiserver/config"
_KINDS = {
    "ClusterRole", "ClusterRoleBinding", "ConfigMap", "CustomResourceDefinition", "Deployment",
    "PriorityClass", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount",
}  # fmt: skip
API_SERVER = "ml-pipeline"
_DEPLOYMENTS = {
    API_SERVER: ["apiserver", f"--config={_CONFIG_FOLDER}", "-logtostderr=true"],
    "ml-pipeline-persistenceagent": [
        "persistence-agent", "--logtostderr=true", "--namespace=$(NAMESPACE)", "--numWorker=2",
        "--ttlSecondsAfterWorkflowFinish=86400", "--executionType=Workflow",
    ],
    "ml-pipeline-scheduledworkflow": [
        "scheduledworkflow", "--logtostderr=true", "--namespace=$(NAMESPACE)", "--clientQPS=10",
        "--clientBurst=20", "--recurringRunResyncIntervalSeconds=5", "--metricsPort=9090",
    ],
    "workflow-controller": None,
    "ml-pipeline-ui": images.PAGES_COMMAND,
}  # fmt: skip
"""Deployments that run here, and the commands of their images; the others show TensorBoard, and
are caches that this version no longer asks."""
_WHO_SCHEDULES = {
    "USER_IDENTITY_HEADER": "--userIdentityHeader=$(USER_IDENTITY_HEADER)",
    "USER_IDENTITY_VALUE": "--userIdentityValue=$(USER_IDENTITY_VALUE)",
}
"""Arguments for variables that a Deployment has in multi-user mode alone."""
_INSTALLS = {
    MULTI_USER: ("base/installs/multi-user", "base/metadata/base"),
    SINGLE_USER: ("base/installs/generic", "base/pipeline/cluster-scoped", "base/metadata/base"),
}
_ARGO_INSTALLS = {
    MULTI_USER: ("installs/cluster",),
    SINGLE_USER: ("installs/namespace", "installs/namespace/cluster-scoped"),
}
_COMPONENTS = {MULTI_USER: "steps", SINGLE_USER: "single-user"}
"""Of k8s/kubeflow."""
PAGES = "ml-pipeline-ui"
_OF_NODE = ("metadata-grpc-service", "metadata-envoy-service")
_REMOTE = re.compile(r"https://github\.com/argoproj/argo-workflows/(\S+?)\?\S*")
_SETTINGS = {
    "$(kfp-namespace)": NAMESPACE,
    "$(kfp-artifact-bucket-name)": servers.BUCKET,
    "$(kfp-default-pipeline-root)": "",
}


class Manifests(NamedTuple):
    """What is applied, in two steps."""

    definitions: list[dict]
    """CustomResourceDefinitions, which have to be there first."""
    rest: list[dict]


def runs_namespace(mode):
    """Where the pods of runs are."""
    return PIPELINE if mode == MULTI_USER else NAMESPACE


def rendered(places, sources, mode):
    """Everything that Kubeflow Pipelines needs on the cluster.

    Args:
        places: of the cluster.
        sources: the checkouts.
        mode: one of `MODES`.

    Raises:
        ClusterError: a kustomization does not render, with what kubectl said.
    """
    definitions, rest = [], [_namespace()]
    for one in _of_kubeflow(places, sources, mode):
        (definitions if one["kind"] == "CustomResourceDefinition" else rest).append(one)
    profile = _profile(sources) if mode == MULTI_USER else []
    return Manifests(definitions, [*rest, _config(sources, mode), *_servers(), *profile])


def _of_kubeflow(places, sources, mode):
    folder = places.state / "kubeflow"
    shutil.rmtree(folder, ignore_errors=True)
    kustomize = sources.pipelines / "manifests" / "kustomize"
    shutil.copytree(kustomize / "third-party" / "argo", folder / "argo")
    for path in (folder / "argo").rglob("kustomization.yaml"):
        local = sources.argo.relative_to("/")
        up = "../" * (len(path.parent.parts) - 1)
        path.write_text(_REMOTE.sub(rf"{up}{local}/\1", path.read_text()))
    installs = [_with_settings(folder, mode), *(kustomize / name for name in _INSTALLS[mode])]
    found = [one for install in installs for one in _kustomized(places, install)]
    tags = images.tagged(sources)
    wanted = set(_DEPLOYMENTS)
    if not pages.is_built(kept_in(places)):
        wanted.remove(PAGES)
    return [_here(one, tags) for one in found if _is_wanted(one, wanted)]


def _with_settings(folder, mode):
    """Argo's manifests, with what k8s/kubeflow adds to them."""
    combined = folder / "argo-with-settings"
    combined.mkdir()
    component = (REPOSITORY / "k8s" / "kubeflow" / "controller").relative_to("/")
    described = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../argo/{install}" for install in _ARGO_INSTALLS[mode]],
        "components": [f"{'../' * (len(combined.parts) - 1)}{component}"],
    }
    (combined / "kustomization.yaml").write_text(yaml.safe_dump(described))
    return combined


def _kustomized(places, folder):
    """Its objects; what other kustomizations of Kubeflow would fill in is filled in."""
    text = yaml.safe_dump_all(objects.rendered(places, folder))
    for name, value in _SETTINGS.items():
        text = text.replace(name, value)
    return list(yaml.safe_load_all(text))


def _is_wanted(one, deployments):
    name = one["metadata"]["name"]
    if one["kind"] == "Deployment":
        return name in deployments
    return one["kind"] in _KINDS and not name.startswith(_OF_NODE)


_CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "PriorityClass"}


def _here(one, tags):
    """The object as this cluster takes it."""
    if one["kind"] not in _CLUSTER_WIDE:
        one["metadata"]["namespace"] = NAMESPACE
    for subject in one.get("subjects", ()):
        if subject["kind"] == "ServiceAccount":
            subject["namespace"] = NAMESPACE
    if one["kind"] == "Deployment":
        _adapt(one, tags)
    return one


def _adapt(deployment, tags):
    """Tags, commands of the images' Dockerfiles, requests that fit a small node."""
    spec = deployment["spec"]["template"]["spec"]
    # they wait with a shell of an image that is not here; what they wait for is up already
    spec.pop("initContainers", None)
    (container,) = spec["containers"]
    container["image"] = tags[container["image"].rpartition(":")[0]]
    container["imagePullPolicy"] = "IfNotPresent"
    container["resources"] = {"requests": {"cpu": "20m", "memory": "64Mi"}}
    container.setdefault("env", []).append(objects.NO_WATCH_LISTS)
    if command := _DEPLOYMENTS[deployment["metadata"]["name"]]:
        container["command"], container["args"] = command[:1], command[1:]
        variables = {one["name"] for one in container["env"]}
        container["args"] += [word for name, word in _WHO_SCHEDULES.items() if name in variables]
    if deployment["metadata"]["name"] == API_SERVER:
        volume = {"name": "config", "configMap": {"name": CONFIG}}
        spec["volumes"] = [*spec.get("volumes", ()), volume]
        mount = {"name": "config", "mountPath": _CONFIG_FOLDER}
        container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]
    if deployment["metadata"]["name"] == PAGES:
        _adapt_pages(container)


def _adapt_pages(container):
    """As a profile's user sees them without Kubeflow's dashboard around them."""
    container["workingDir"] = images.PAGES_FOLDER
    container["env"].append({"name": "HIDE_SIDENAV", "value": "false"})


def _namespace():
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def _config(sources, mode):
    settings = (sources.pipelines / _CONFIG_SOURCE / CONFIG_FILE).read_text()
    described = {"name": CONFIG, "namespace": NAMESPACE, "labels": {MODE_LABEL: mode}}
    data = {CONFIG_FILE: settings}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": described, "data": data}


def overlay(places, mode):
    """A kustomization of espalier for runs of Kubeflow."""
    folder = places.state / "kubeflow" / "espalier"
    folder.mkdir(parents=True, exist_ok=True)
    up = "../" * (len(folder.parts) - 1)
    k8s = f"{up}{(REPOSITORY / 'k8s').relative_to('/')}"
    described = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{k8s}/overlays/local"],
        "components": [f"{k8s}/kubeflow/{_COMPONENTS[mode]}"],
        "images": [{"name": "espalier-cpu", "newName": PIPELINE_IMAGE.rpartition(":")[0]}],
    }
    if mode == SINGLE_USER:
        endpoints = yaml.safe_load((REPOSITORY / "k8s/overlays/local/endpoints.yaml").read_text())
        endpoints["metadata"]["namespace"] = NAMESPACE
        described["patches"] = [{"patch": yaml.safe_dump(endpoints)}]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(described))
    return folder


def _servers():
    """Services under the names that the manifests ask for, which lead to the node."""
    for name, port, at in (
        ("mysql", 3306, servers.DATABASE_PORT),
        ("metadata-grpc-service", 8080, servers.METADATA_PORT),
        ("metadata-envoy-service", 9090, servers.METADATA_WEB_PORT),
        ("seaweedfs", 9000, servers.S3_PORT),
    ):
        described = {"name": name, "namespace": NAMESPACE}
        labels = {"kubernetes.io/service-name": name}
        yield {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": described,
            "spec": {"ports": [{"name": "main", "port": port}]},
        }
        yield {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**described, "name": f"{name}-node", "labels": labels},
            "addressType": "IPv4",
            "ports": [{"name": "main", "port": at}],
            "endpoints": [{"addresses": [NODE_ADDRESS], "conditions": {"ready": True}}],
        }
    yield _credentials(NAMESPACE)


def _credentials(namespace):
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "mlpipeline-minio-artifact", "namespace": namespace},
        "stringData": {"accesskey": servers.ACCESS_KEY, "secretkey": servers.SECRET_KEY},
    }


def _profile(sources):
    """What the profile controller (sync.py of its folder) and Kubeflow's profiles make in one."""
    root = f"minio://{servers.BUCKET}/private-artifacts/{PIPELINE}/v2/artifacts"
    configuration = {
        "kfp-launcher": {"defaultPipelineRoot": root},
        "metadata-grpc-configmap": {
            "METADATA_GRPC_SERVICE_HOST": f"metadata-grpc-service.{NAMESPACE}",
            "METADATA_GRPC_SERVICE_PORT": "8080",
        },
    }
    yield {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": RUNNER, "namespace": PIPELINE},
    }
    runner = sources.pipelines / "manifests/kustomize/base/pipeline/pipeline-runner-role.yaml"
    role = yaml.safe_load(runner.read_text())
    role["metadata"]["namespace"] = PIPELINE
    yield role
    steps = {"kind": "ServiceAccount", "name": RUNNER, "namespace": PIPELINE}
    user = {"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}
    yield _bound(RUNNER, steps, "Role", "pipeline-runner")
    yield _bound(RUNNER, steps, "ClusterRole", "kubeflow-pipelines-edit")
    yield _bound("user", user, "ClusterRole", "kubeflow-pipelines-edit")
    for name, data in configuration.items():
        described = {"name": name, "namespace": PIPELINE}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": described, "data": data}
    yield _credentials(PIPELINE)


def _bound(whose, subject, kind, role):
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"{whose}-{role}", "namespace": PIPELINE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [subject],
    }

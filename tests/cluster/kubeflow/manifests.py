"""Kubeflow's own manifests, rendered from its checkout, and changed where this cluster differs.

Multi-user, so that the API server asks Kubernetes who calls and what it may; the namespace of the
pipeline is a user's profile, with what Kubeflow's profile controller would put into it.
"""

import re
import shutil

import yaml

from tests.cluster import objects
from tests.cluster.kubeflow import images, servers
from tests.cluster.network import NODE_ADDRESS
from tests.cluster.places import REPOSITORY
from tests.unit.k8s.allowed_verbs import PIPELINE

NAMESPACE = "kubeflow"
RUNNER = "default-editor"
"""The account that Kubeflow gives a profile's steps unless a run names another."""
_KINDS = {
    "ClusterRole", "ClusterRoleBinding", "ConfigMap", "CustomResourceDefinition", "Deployment",
    "PriorityClass", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount",
}  # fmt: skip
_DEPLOYMENTS = {
    "ml-pipeline": ["apiserver", f"--config={images.CONFIG_FOLDER}", "-logtostderr=true"],
    "ml-pipeline-persistenceagent": [
        "persistence-agent", "--logtostderr=true", "--namespace=", "--numWorker=2",
        "--ttlSecondsAfterWorkflowFinish=86400", "--executionType=Workflow",
    ],
    "ml-pipeline-scheduledworkflow": [
        "scheduledworkflow", "--logtostderr=true", "--namespace=", "--clientQPS=10",
        "--clientBurst=20", "--recurringRunResyncIntervalSeconds=5", "--metricsPort=9090",
        "--userIdentityHeader=$(USER_IDENTITY_HEADER)",
        "--userIdentityValue=$(USER_IDENTITY_VALUE)",
    ],
    "workflow-controller": None,
}  # fmt: skip
"""Deployments that run here, and the commands of their images; the others are pages, and caches
that this version no longer asks."""
_REMOTE = re.compile(r"https://github\.com/argoproj/argo-workflows/(\S+?)\?\S*")
_SETTINGS = {
    "$(kfp-namespace)": NAMESPACE,
    "$(kfp-artifact-bucket-name)": servers.BUCKET,
    "$(kfp-default-pipeline-root)": "",
}


def cluster_wide(places, sources):
    """CustomResourceDefinitions, which have to be there first."""
    return [one for one in _rendered(places, sources) if one["kind"] == "CustomResourceDefinition"]


def in_order(places, sources):
    """Everything else."""
    rest = [one for one in _rendered(places, sources) if one["kind"] != "CustomResourceDefinition"]
    return [_namespace(), *rest, *_servers(), *_profile(sources)]


def _rendered(places, sources):
    folder = places.state / "kubeflow"
    shutil.rmtree(folder, ignore_errors=True)
    kustomize = sources.pipelines / "manifests" / "kustomize"
    shutil.copytree(kustomize / "third-party" / "argo", folder / "argo")
    for path in (folder / "argo").rglob("kustomization.yaml"):
        local = sources.argo.relative_to("/")
        up = "../" * (len(path.parent.parts) - 1)
        path.write_text(_REMOTE.sub(rf"{up}{local}/\1", path.read_text()))
    found = [
        *_kustomized(places, _with_settings(folder)),
        *_kustomized(places, kustomize / "base" / "installs" / "multi-user"),
        *_kustomized(places, kustomize / "base" / "metadata" / "base"),
    ]
    tags = images.tagged(sources)
    return [_here(one, tags) for one in found if _is_wanted(one)]


def _with_settings(folder):
    """Argo's manifests, with what k8s/kubeflow adds to them."""
    combined = folder / "argo-with-settings"
    combined.mkdir()
    component = (REPOSITORY / "k8s" / "kubeflow" / "controller").relative_to("/")
    described = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../argo/installs/cluster"],
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


def _is_wanted(one):
    name = one["metadata"]["name"]
    if one["kind"] == "Deployment":
        return name in _DEPLOYMENTS
    return one["kind"] in _KINDS and not name.startswith("metadata-grpc-service")


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


def _namespace():
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def overlay(places):
    """A kustomization of espalier for runs of Kubeflow, and of Argo's setting for retries."""
    folder = places.state / "kubeflow" / "espalier"
    folder.mkdir(parents=True, exist_ok=True)
    up = "../" * (len(folder.parts) - 1)
    k8s = f"{up}{(REPOSITORY / 'k8s').relative_to('/')}"
    described = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{k8s}/overlays/local"],
        "components": [f"{k8s}/kubeflow/steps"],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(described))
    return folder


def _servers():
    """Services under the names that the manifests ask for, which lead to the node."""
    for name, port, at in (
        ("mysql", 3306, servers.DATABASE_PORT),
        ("metadata-grpc-service", 8080, servers.METADATA_PORT),
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
    bound = (("Role", "pipeline-runner"), ("ClusterRole", "kubeflow-pipelines-edit"))
    for kind, name in bound:
        yield {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{RUNNER}-{name}", "namespace": PIPELINE},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": RUNNER, "namespace": PIPELINE}],
        }
    for name, data in configuration.items():
        described = {"name": name, "namespace": PIPELINE}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": described, "data": data}
    yield _credentials(PIPELINE)

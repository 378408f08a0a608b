"""What every pod of a run has in common: no rights, no writable root, limits, where it may run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from espalier.cluster.objects.names import K8sObject
from espalier.cluster.objects.volumes import CACHE_MOUNT, SCRATCH_MOUNT, Volumes, run_volumes
from espalier.config import KubernetesConfig, PodResources, Toleration

USER = 65532
"""Numeric, so that the kubelet can see that it is not root; the images' own `USER`."""

STEP_ACCOUNT = "espalier-step"
"""May do nothing at the API server, and gets no token for it."""
TRAINER_ACCOUNT = "espalier-trainer"
"""May manage pods in the sandbox namespace."""
LAUNCHER_ACCOUNT = "espalier-ray-launcher"
"""May manage RayJobs in the pipeline's namespace."""

PIPELINE_PRIORITY = "espalier-pipeline"
SANDBOX_PRIORITY = "espalier-sandbox"
"""Below everything else: sandboxes are the first to go, and are made again."""

S3_KEYS = {"AWS_ACCESS_KEY_ID": "access_key", "AWS_SECRET_ACCESS_KEY": "secret_key"}
"""Environment variable -> key in the secret `kubernetes.s3_secret`."""
ENDPOINT_KEYS = ("AWS_ENDPOINT_URL_S3", "AWS_REGION", "MLFLOW_TRACKING_URI")
"""Keys of the ConfigMap `kubernetes.endpoints`, and the variables that they become."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContainer:
    """The one container of a run's pod."""

    name: str
    image: str
    resources: PodResources
    command: Sequence[str] = ()
    """Empty leaves it to whoever creates the pod (KubeRay starts Ray itself)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0


def run_pod(container: RunContainer, settings: KubernetesConfig, *, account: str) -> K8sObject:
    """The spec of a pod that reads and writes a run's artifacts."""
    volumes = run_volumes(settings, container.resources, gpus=container.gpus)
    entry = _container_entry(container, settings, volumes)
    if settings.cache_claim is not None:
        entry["env"].append({"name": "XDG_CACHE_HOME", "value": CACHE_MOUNT})
    entry["env"] += _s3_credentials(settings.s3_secret)
    entry["envFrom"] = [{"configMapRef": {"name": settings.endpoints}}]
    return _pod_spec(container, entry, volumes, settings, account)


def bare_pod(container: RunContainer, settings: KubernetesConfig, *, account: str) -> K8sObject:
    """The spec of a pod that has no business with artifacts: no credentials, no volume but /tmp."""
    volumes = Volumes().scratch("tmp", SCRATCH_MOUNT, size=container.resources.disk_limit)
    entry = _container_entry(container, settings, volumes)
    return _pod_spec(container, entry, volumes, settings, account)


def restricted_pod(user: int = USER) -> K8sObject:
    """Security context of a pod under the restricted Pod Security Standard; `user` owns files."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def restricted_container() -> K8sObject:
    """Security context of a container: no capability, no way to gain one, no writable root."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def resource_requirements(
    resources: PodResources, devices: Mapping[str, str] | None = None
) -> K8sObject:
    """Requests and limits of a container.

    Args:
        resources: may burst from request to limit. Disk has no request: scratch space is taken as
            it comes, and the limit ends who takes too much.
        devices: whole ones, by resource name; requested and limited alike, as Kubernetes demands.
    """
    return {
        "requests": {
            "cpu": resources.cpu_request,
            "memory": resources.memory_request,
            **(devices or {}),
        },
        "limits": {
            "cpu": resources.cpu_limit,
            "memory": resources.memory_limit,
            "ephemeral-storage": resources.disk_limit,
            **(devices or {}),
        },
    }


def toleration_entry(toleration: Toleration) -> K8sObject:
    """An entry of a pod's `tolerations`, without what is empty."""
    entry = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
    }
    return {name: value for name, value in entry.items() if value}


def environment_entries(variables: Mapping[str, str]) -> list[K8sObject]:
    """Entries of `env`, in the order of their names: equal environments make equal manifests."""
    return [{"name": name, "value": variables[name]} for name in sorted(variables)]


def _pod_spec(
    container: RunContainer,
    entry: K8sObject,
    volumes: Volumes,
    settings: KubernetesConfig,
    account: str,
) -> K8sObject:
    """Never restarted in place: its owner makes another, which tells one try from the next."""
    spec: K8sObject = {
        "serviceAccountName": account,
        "automountServiceAccountToken": account != STEP_ACCOUNT,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "priorityClassName": PIPELINE_PRIORITY,
        "securityContext": restricted_pod(),
        "containers": [entry],
        "volumes": volumes.volumes,
    }
    selector = settings.node_selector | (settings.gpus.node_selector if container.gpus else {})
    tolerated = settings.tolerations + (settings.gpus.tolerations if container.gpus else ())
    if selector:
        spec["nodeSelector"] = selector
    if tolerated:
        spec["tolerations"] = [toleration_entry(toleration) for toleration in tolerated]
    return spec


def _container_entry(
    container: RunContainer, settings: KubernetesConfig, volumes: Volumes
) -> K8sObject:
    devices = {settings.gpus.resource: str(container.gpus)} if container.gpus else {}
    entry: K8sObject = {
        "name": container.name,
        "image": container.image,
        "imagePullPolicy": "IfNotPresent",
        "env": environment_entries(container.environment),
        "resources": resource_requirements(container.resources, devices),
        "securityContext": restricted_container(),
        "volumeMounts": volumes.mounts,
    }
    if container.command:
        entry["command"] = list(container.command)
    return entry


def _s3_credentials(secret: str) -> list[K8sObject]:
    """Under the names that every S3 client reads."""
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, key in S3_KEYS.items()
    ]

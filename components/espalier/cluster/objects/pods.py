"""Pod specs of a run: restricted security context, limits, volumes, placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from espalier.cluster.objects.names import OWN_LABEL_VARIABLES, K8sObject
from espalier.config import KubernetesConfig, PodResources, Toleration
from espalier.determinism import TRACKING_FALLBACK

S3_MOUNT = "/s3"
"""Path below which KFP's executor maps s3://bucket/key to bucket/key."""
WORKSPACE_MOUNT = "/workspace"
"""Path at which Jobs, launched nodes, vLLM servers, and those steps of Kubeflow that give servers
weights have `kubernetes.workspace_claim`. Jobs and launched nodes keep their artifacts there
instead of below /s3."""
CACHE_MOUNT = "/cache"
SCRATCH_MOUNT = "/tmp"
SECRETS_MOUNT = "/secrets"
"""Folder with a folder for each secret of `kubernetes.mounted_secrets`."""


class Volumes:
    """Builder of a pod's volumes and their mounts."""

    def __init__(self) -> None:
        self.volumes: list[K8sObject] = []
        self.mounts: list[K8sObject] = []

    def scratch(self, name: str, path: str, *, size: str) -> Volumes:
        """Add an empty folder on the node's disk, which is deleted with the pod."""
        return self._add({"name": name, "emptyDir": {"sizeLimit": size}}, path)

    def memory(self, name: str, path: str, *, size: str) -> Volumes:
        """Add an empty folder in memory, which counts towards the container's limit."""
        return self._add({"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": size}}, path)

    def claim(self, name: str, path: str, *, claim: str) -> Volumes:
        """Add a persistent volume claim."""
        return self._add({"name": name, "persistentVolumeClaim": {"claimName": claim}}, path)

    def secret(self, name: str, path: str, *, secret: str) -> Volumes:
        """Add a secret's entries as read-only files."""
        return self._add({"name": name, "secret": {"secretName": secret}}, path)

    def _add(self, volume: K8sObject, path: str) -> Volumes:
        self.volumes.append(volume)
        self.mounts.append({"name": volume["name"], "mountPath": path})
        return self


def run_volumes(settings: KubernetesConfig, resources: PodResources, *, gpus: int) -> Volumes:
    """Volumes for /tmp, artifacts, cache and keys; with GPUs a /dev/shm large enough for NCCL."""
    volumes = Volumes().scratch("tmp", SCRATCH_MOUNT, size=resources.disk_limit)
    if settings.workspace_claim is None:
        volumes.scratch("workspace", S3_MOUNT, size=resources.disk_limit)
    else:
        volumes.claim("workspace", WORKSPACE_MOUNT, claim=settings.workspace_claim)
    if settings.cache_claim is not None:
        volumes.claim("cache", CACHE_MOUNT, claim=settings.cache_claim)
    for number, secret in enumerate(settings.mounted_secrets):  # its name may fill that of a volume
        volumes.secret(f"secret-{number}", f"{SECRETS_MOUNT}/{secret}", secret=secret)
    if gpus:
        volumes.memory("shm", "/dev/shm", size=settings.gpus.shared_memory)
    return volumes


TRY_AGAIN_MARK = "try again: "
"""Prefix of the termination message of a step that may succeed later, such as when S3 is
unreachable. Kubeflow's launcher exits with 1 for every exit code of its step, so the retry rule of
k8s/kubeflow/controller reads this message."""

USER = 65532
"""`USER` of the images; numeric, so that the kubelet can verify that it is not root."""

STEP_ACCOUNT = "espalier-step"
"""Account without rights at the API server and without a token."""
TRAINER_ACCOUNT = "espalier-trainer"
"""Account that may manage pods in the sandbox namespace."""
LAUNCHER_ACCOUNT = "espalier-training-launcher"
"""Account that may manage RayJobs and TrainJobs in the pipeline's namespace."""

PIPELINE_PRIORITY = "espalier-pipeline"
SANDBOX_PRIORITY = "espalier-sandbox"
"""Lowest priority class: sandboxes are preempted first, and are created again."""

S3_KEYS = {"AWS_ACCESS_KEY_ID": "access_key", "AWS_SECRET_ACCESS_KEY": "secret_key"}
"""Environment variable -> key of the secret `kubernetes.s3_secret`."""
ENDPOINT_KEYS = (
    "AWS_ENDPOINT_URL_S3", "AWS_REGION", "ESPALIER_ARTIFACTS", "MLFLOW_TRACKING_URI",
)  # fmt: skip
"""Keys of the ConfigMap `kubernetes.endpoints`, set as environment variables."""
METRICS_PORT = "ESPALIER_METRICS_PORT"
"""Another key of that ConfigMap, which k8s/monitoring sets."""
KUBEFLOW_ENDPOINTS = {key: key for key in (*ENDPOINT_KEYS, METRICS_PORT)} | {
    "MLFLOW_TRACKING_URI": TRACKING_FALLBACK
}
"""Key of that ConfigMap -> variable of a Kubeflow step. Kubeflow's MLflow plugin sets
MLFLOW_TRACKING_URI itself; Argo would merge two entries of that name into one with both a value and
a reference, which the API server refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContainer:
    """Settings of a pod's single container."""

    name: str
    image: str
    resources: PodResources
    command: Sequence[str] = ()
    """Empty for KubeRay's pods, whose command KubeRay sets."""
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0


def run_pod(container: RunContainer, settings: KubernetesConfig, *, account: str) -> K8sObject:
    """The spec of a pod that reads and writes a run's artifacts."""
    volumes = run_volumes(settings, container.resources, gpus=container.gpus)
    entry = _container_entry(container, settings, volumes)
    if settings.cache_claim is not None:
        entry["env"].append({"name": "XDG_CACHE_HOME", "value": CACHE_MOUNT})
    entry["env"] += [*s3_credentials(settings), *own_labels()]
    entry["envFrom"] = [{"configMapRef": {"name": settings.endpoints}}]
    return _pod_spec(container, entry, volumes, settings, account)


def bare_pod(container: RunContainer, settings: KubernetesConfig, *, account: str) -> K8sObject:
    """The spec of a pod without artifacts: no credentials, and /tmp as the only volume."""
    volumes = Volumes().scratch("tmp", SCRATCH_MOUNT, size=container.resources.disk_limit)
    entry = _container_entry(container, settings, volumes)
    return _pod_spec(container, entry, volumes, settings, account)


def restricted_pod(user: int = USER) -> K8sObject:
    """Pod security context of the restricted Pod Security Standard; `user` owns the volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def restricted_container() -> K8sObject:
    """Container security context: no capabilities, no escalation, read-only root."""
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
        resources: CPU, memory and disk; a pod over its disk limit is evicted.
        devices: resource name -> count; Kubernetes requires equal request and limit.
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
    """An entry of `tolerations` without empty fields."""
    entry = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
    }
    return {name: value for name, value in entry.items() if value}


def environment_entries(variables: Mapping[str, str]) -> list[K8sObject]:
    """Entries of `env`, sorted by name, so that equal environments give equal manifests."""
    return [{"name": name, "value": variables[name]} for name in sorted(variables)]


def _pod_spec(
    container: RunContainer,
    entry: K8sObject,
    volumes: Volumes,
    settings: KubernetesConfig,
    account: str,
) -> K8sObject:
    """Pod spec that is never restarted in place: its owner creates a new pod for each attempt."""
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
    return spec | placement_fields(container, settings)


def placement_fields(container: RunContainer, settings: KubernetesConfig) -> K8sObject:
    """Node selector and tolerations of a pod's spec; empty where the profile sets none."""
    selector = settings.node_selector | (settings.gpus.node_selector if container.gpus else {})
    tolerated = settings.tolerations + (settings.gpus.tolerations if container.gpus else ())
    fields: K8sObject = {}
    if selector:
        fields["nodeSelector"] = selector
    if tolerated:
        fields["tolerations"] = [toleration_entry(toleration) for toleration in tolerated]
    return fields


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


def own_labels() -> list[K8sObject]:
    """Variables with run and stage from the pod's labels; empty values where it lacks them."""
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}
        for label, name in OWN_LABEL_VARIABLES.items()
    ]


def s3_credentials(settings: KubernetesConfig) -> list[K8sObject]:
    """Variables with S3 keys from a secret; none where the pod's account has a role."""
    if settings.s3_credentials == "account":
        return []
    secret = settings.s3_secret
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, key in S3_KEYS.items()
    ]

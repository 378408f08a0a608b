"""Profile section `kubernetes`: where a run's pods live and what they get.

It is in no stage's digest: where a stage runs is not what it computes.
"""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from espalier import __version__
from espalier.config.data import Section
from espalier.config.kubeflow import KubeflowConfig
from espalier.config.quantities import DnsLabel, PinnedImage, Quantity, amount

_RESERVED = re.compile(r"(app\.kubernetes\.io|espalier\.dev|kueue\.x-k8s\.io|ray\.io)/")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")


class ImagesConfig(Section):
    """The targets of components/Dockerfile, as this cluster pulls them."""

    cpu: PinnedImage = f"espalier-cpu:{__version__}"
    """Runs the stages without a GPU."""
    train: PinnedImage = f"espalier-train:{__version__}"
    """Runs the stages that use a GPU, and Ray's head and workers."""


class PodResources(Section):
    """What a container asks for, and what it may not exceed."""

    cpu_request: Quantity
    """CPU that a node keeps free for it."""
    memory_request: Quantity
    """Memory that a node keeps free for it."""
    cpu_limit: Quantity
    """CPU beyond which it is slowed down."""
    memory_limit: Quantity
    """Memory beyond which it is killed."""
    disk_limit: Quantity
    """Of its writable volumes and its log together; beyond it the pod is evicted."""

    @model_validator(mode="after")
    def _requests_are_within_limits(self) -> Self:
        for kind in ("cpu", "memory"):
            request, limit = getattr(self, f"{kind}_request"), getattr(self, f"{kind}_limit")
            if amount(request) > amount(limit):
                raise ValueError(
                    f"{kind}_request={request} exceeds {kind}_limit={limit}; no node would start it"
                )
        return self


class StageResources(PodResources):
    """Of a stage on CPU cores."""

    cpu_request: Quantity = "1"
    memory_request: Quantity = "2Gi"
    cpu_limit: Quantity = "4"
    memory_limit: Quantity = "8Gi"
    disk_limit: Quantity = "20Gi"


class GpuNodeResources(PodResources):
    """Of a stage, or a Ray worker, that has a node's GPUs."""

    cpu_request: Quantity = "8"
    memory_request: Quantity = "64Gi"
    cpu_limit: Quantity = "16"
    memory_limit: Quantity = "96Gi"
    disk_limit: Quantity = "100Gi"


class RayHeadResources(PodResources):
    """Of Ray's head, on which its own servers run."""

    cpu_request: Quantity = "2"
    memory_request: Quantity = "8Gi"
    cpu_limit: Quantity = "4"
    memory_limit: Quantity = "16Gi"
    disk_limit: Quantity = "50Gi"


class SandboxResources(PodResources):
    """Of a sandbox: many share a node, so each asks for little and may burst."""

    cpu_request: Quantity = "10m"
    memory_request: Quantity = "64Mi"
    cpu_limit: Quantity = "1"
    memory_limit: Quantity = "1536Mi"
    disk_limit: Quantity = "256Mi"


class Toleration(Section):
    """A taint that pods put up with."""

    key: str = Field(min_length=1)
    """Of the taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """"Exists" takes any value of the taint, "Equal" the one that is named."""
    value: str = ""
    """Of the taint, with operator = "Equal"."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Empty puts up with every effect of the taint."""

    @model_validator(mode="after")
    def _only_equal_compares(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError(
                f'a toleration of {self.key} with value={self.value!r} needs operator = "Equal"'
            )
        return self


class GpuConfig(Section):
    """Accelerators of the stages that compute on a policy."""

    count: int = Field(default=0, ge=0)
    """GPUs of each of those stages' pods, and of each Ray worker."""
    resource: str = "nvidia.com/gpu"
    """What the device plugin calls its GPUs."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the GPU node pool, beside kubernetes.node_selector."""
    tolerations: tuple[Toleration, ...] = (Toleration(key="nvidia.com/gpu"),)
    resources: GpuNodeResources = GpuNodeResources()
    shared_memory: Quantity = "16Gi"
    """Size of /dev/shm: NCCL and data loaders outgrow the 64 MiB of a container's own."""

    @model_validator(mode="after")
    def _pool_and_memory_fit(self) -> Self:
        if self.node_selector and not self.count:
            raise ValueError(
                "kubernetes.gpus.node_selector names a pool of GPU nodes and no stage asks for a "
                "GPU; set kubernetes.gpus.count, or choose nodes by kubernetes.node_selector"
            )
        if amount(self.shared_memory) >= amount(self.resources.memory_limit):
            raise ValueError(
                f"kubernetes.gpus.shared_memory={self.shared_memory} counts as memory of the "
                f"container, whose memory_limit={self.resources.memory_limit} leaves nothing beside"
            )
        return self


class RayConfig(Section):
    """Training on several nodes, as a KubeRay RayJob."""

    workers: int = Field(default=0, ge=0)
    """Nodes that train together, with kubernetes.gpus.count GPUs each and a process of training on
    every GPU, or without GPUs a process each; 0 trains in one pod, without Ray."""
    version: str = Field(default="2.60.0", pattern=r"\d+\.\d+\.\d+")
    """Of Ray in kubernetes.images.train."""
    head: RayHeadResources = RayHeadResources()
    ttl_s: int = Field(default=300, ge=0)
    """How long the cluster of a finished job stays, for its logs."""


class SandboxPodsConfig(Section):
    """Pods that the agent's code runs in."""

    runtime_class: DnsLabel = "gvisor"
    """The RuntimeClass; "runc" of k8s/overlays/local shares the node's kernel with the sandbox."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that sandboxes run on."""
    resources: SandboxResources = SandboxResources()
    scratch: Literal["memory", "disk"] = "memory"
    """Where /workspace and /tmp lie. In memory they are full at exactly disk_limit each; on the
    node's disk, for large repositories, the kubelet looks every few seconds and evicts."""
    internet_sockets: bool = False
    """Whether programs may open them. Without, nothing is reached from a sandbox, its own loopback
    included, on any cluster; with them that is up to the NetworkPolicy, and to whether the network
    plugin enforces it. Tests of a repository that serve on loopback need them."""
    ttl_s: int = Field(default=4 * 3600, ge=60)
    """After which a sandbox is ended by its node, and collected, whoever forgot it."""

    @model_validator(mode="after")
    def _scratch_leaves_memory(self) -> Self:
        resources = self.resources
        if self.scratch == "memory" and 2 * amount(resources.disk_limit) >= amount(
            resources.memory_limit
        ):
            raise ValueError(
                f"kubernetes.sandboxes: /workspace and /tmp of disk_limit={resources.disk_limit} "
                f"each fill memory_limit={resources.memory_limit}; raise the one, lower the other, "
                'or set scratch = "disk"'
            )
        return self


class KubernetesConfig(Section):
    """How a run's objects look on a cluster that `k8s/` was installed on."""

    pipeline_namespace: DnsLabel = "espalier-pipeline"
    """Where the stages of a run are."""
    sandbox_namespace: DnsLabel = "espalier-sandboxes"
    """Where the sandboxes are."""
    images: ImagesConfig = ImagesConfig()
    labels: dict[str, str] = Field(default_factory=dict)
    """Put on every object of the run, for accounting."""
    queue: DnsLabel | None = None
    """Kueue's LocalQueue; without it pods start as soon as they fit."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that stages run on."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that the pods of stages put up with."""
    resources: StageResources = StageResources()
    """Of stages without a GPU."""
    workspace_claim: DnsLabel | None = None
    """Volume claim under the artifacts of a running stage: a stage whose pod is lost goes on from
    its checkpoints. Without it they end with the pod."""
    cache_claim: DnsLabel | None = None
    """Volume claim of what is downloaded or compiled once: base models, kernels."""
    s3_secret: DnsLabel = "espalier-s3"
    """Secret with access_key and secret_key."""
    endpoints: DnsLabel = "espalier-endpoints"
    """ConfigMap whose keys become environment variables: where S3 and MLflow are."""
    retries: int = Field(default=3, ge=0)
    """How often a stage is started again after its pod died; not after it refused its input."""
    deadline_s: int = Field(default=24 * 3600, ge=60)
    """A stage that takes longer is ended, its retries included."""
    keep_s: int = Field(default=24 * 3600, ge=0)
    """How long a finished Job stays, for its log."""
    gpus: GpuConfig = GpuConfig()
    ray: RayConfig = RayConfig()
    sandboxes: SandboxPodsConfig = SandboxPodsConfig()
    kubeflow: KubeflowConfig = KubeflowConfig()

    @model_validator(mode="after")
    def _sandboxes_live_apart(self) -> Self:
        if self.pipeline_namespace == self.sandbox_namespace:
            raise ValueError(
                f"kubernetes.sandbox_namespace={self.sandbox_namespace} is the pipeline's own: who "
                "may create sandboxes could then create pods with the pipeline's secrets. Name two"
            )
        return self

    @model_validator(mode="after")
    def _labels_are_free_ones(self) -> Self:
        for key, value in self.labels.items():
            if _RESERVED.match(key):
                raise ValueError(f"kubernetes.labels: {key} is set by espalier; choose another key")
            if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
                raise ValueError(f"kubernetes.labels: {key}={value} is no label in Kubernetes")
        return self

    @property
    def processes_on_ray_node(self) -> int:
        """Processes of training on each of `ray.workers`: one a GPU, or one that has the CPUs."""
        return self.gpus.count or 1

    @model_validator(mode="after")
    def _nodes_share_files(self) -> Self:
        if self.ray.workers and self.workspace_claim is None:
            raise ValueError(
                "kubernetes.ray.workers share checkpoints and artifacts; name a claim that several "
                "nodes can write (ReadWriteMany) as kubernetes.workspace_claim"
            )
        return self

"""Profile section `kubernetes`: pods, Ray, sandboxes and Kubeflow, in Kubernetes' spelling.

It is in no stage's digest: where a stage runs is not what it computes.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from espalier import __version__
from espalier.config.data import Section
from espalier.config.training import HardwareConfig, TrainingConfig

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|Ki|M|Mi|G|Gi|T|Ti|)")
_FACTORS = {
    "m": Decimal("0.001"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
}  # fmt: skip
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[^@\s]+:([\w][\w.-]{0,127})")


def amount(quantity: str) -> Decimal:
    """How much `quantity` is: cores for "500m", bytes for "2Gi".

    Raises:
        ValueError: not an amount that Kubernetes reads.
    """
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is no amount; write it as 500m or 2 (cores), 512Mi or 8Gi")
    return Decimal(match[1]) * _FACTORS[match[2]]


def _number_as_text(value: object) -> object:
    """Whole cores are numbers in TOML; turn them into text, but not a bool."""
    return str(value) if type(value) is int else value


def _quantity(text: str) -> str:
    amount(text)
    return text


def _dns_label(text: str) -> str:
    if not _DNS_LABEL.fullmatch(text):
        raise ValueError(
            f"{text!r} is no name in Kubernetes: lower-case letters, digits and dashes, at most 63"
        )
    return text


def _pinned_image(text: str) -> str:
    tag = _TAG.fullmatch(text)
    if not _DIGEST.fullmatch(text) and (tag is None or tag[1] == "latest"):
        raise ValueError(
            f"{text!r} may be another image tomorrow; name it by digest (IMAGE@sha256:...), or by "
            "a tag other than latest"
        )
    return text


def _time_zone(text: str) -> str:
    try:
        if text != "UTC":  # which needs no time zone database
            ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{text!r} is no time zone known here; one is Europe/Paris") from error
    return text


def _pull_secret(text: str) -> str:
    if not text.startswith("espalier-pull"):
        raise ValueError(
            f"{text!r} is no secret for pulling images: the sandbox namespace keeps only those "
            "that are named espalier-pull or espalier-pull-..."
        )
    return _dns_label(text)


Quantity = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_quantity)]
DnsLabel = Annotated[str, AfterValidator(_dns_label)]
PullSecret = Annotated[str, AfterValidator(_pull_secret)]
TimeZone = Annotated[str, AfterValidator(_time_zone)]
PinnedImage = Annotated[str, AfterValidator(_pinned_image)]
"""An image by digest, or by a tag that is never moved."""


class KubeflowConfig(Section):
    """A server of Kubeflow Pipelines, and under which names it keeps what is submitted."""

    endpoint: str | None = Field(default=None, pattern=r"https?://[^@\s]+")
    """Such as http://localhost:8888, or https://HOST/pipeline; without it KF_PIPELINES_ENDPOINT."""
    ui: str | None = Field(default=None, pattern=r"https?://[^@\s]+")
    """Kubeflow's own pages, for links to runs; without it KF_PIPELINES_UI_ENDPOINT, or the endpoint
    where it serves them."""
    token_file: Path | None = None
    """Bearer token; read anew by every command. Without it KF_PIPELINES_TOKEN, or the file
    KF_PIPELINES_SA_TOKEN_PATH, or none."""
    namespace: DnsLabel | None = None
    """In multi-user mode the profile's namespace; None where Kubeflow has one user."""
    service_account: DnsLabel | None = None
    """Account of a run's pods; espalier-kubeflow if its steps use sandboxes or launch RayJobs."""
    pipeline: DnsLabel = "espalier-data-to-model"
    """Name under which the compiled pipeline is uploaded."""
    experiment: str = Field(default="espalier", min_length=1)
    """Kubeflow experiment of the runs."""
    timezone: TimeZone = "UTC"
    """Zone in which this Kubeflow reads every cron: `cronScheduleTimezone` in its config map
    pipeline-install-config."""
    retry_pause_s: int = Field(default=30, ge=0)
    """Pause before the first retry of a step; each further one is twice as long."""
    timeout_s: float = Field(default=30.0, gt=0)
    """How long one request may take."""
    attempts: int = Field(default=4, ge=1)
    """Attempts at a request that changes nothing, while the server is away or fails."""


PROFILE_LABEL = "espalier.dev/profile"
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

    def by_tag(self) -> list[str]:
        """Those without a digest, each once: what a registry gives for them may change."""
        images = dict.fromkeys((self.cpu, self.train))
        return [image for image in images if not _DIGEST.fullmatch(image)]


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
    """Limit of its writable volumes and its log together; beyond it the pod is evicted."""

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
    """Resources of a stage's pod, if it has no GPU."""

    cpu_request: Quantity = "1"
    memory_request: Quantity = "2Gi"
    cpu_limit: Quantity = "4"
    memory_limit: Quantity = "8Gi"
    disk_limit: Quantity = "20Gi"


class GpuNodeResources(PodResources):
    """Resources of a stage, or a Ray worker, that has a node's GPUs."""

    cpu_request: Quantity = "8"
    memory_request: Quantity = "64Gi"
    cpu_limit: Quantity = "16"
    memory_limit: Quantity = "96Gi"
    disk_limit: Quantity = "100Gi"


class RayHeadResources(PodResources):
    """Resources of Ray's head, on which its own servers run."""

    cpu_request: Quantity = "2"
    memory_request: Quantity = "8Gi"
    cpu_limit: Quantity = "4"
    memory_limit: Quantity = "16Gi"
    disk_limit: Quantity = "50Gi"


class SandboxResources(PodResources):
    """Resources of a sandbox: many share a node, so each asks for little and may burst."""

    cpu_request: Quantity = "10m"
    memory_request: Quantity = "64Mi"
    cpu_limit: Quantity = "1"
    memory_limit: Quantity = "1536Mi"
    disk_limit: Quantity = "256Mi"


class Toleration(Section):
    """A taint that pods put up with."""

    key: str = Field(min_length=1)
    """Key of the taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """"Exists" takes any value of the taint, "Equal" the one that is named."""
    value: str = ""
    """Value of the taint, for operator = "Equal"."""
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


_FIRST_RAY_WITH_TOKENS = (2, 52)


class RayConfig(Section):
    """Training on several nodes, as a KubeRay RayJob."""

    workers: int = Field(default=0, ge=0)
    """Nodes that train together with kubernetes.trainer = "rayjob", with kubernetes.gpus.count GPUs
    each and a process of training on every GPU, or without GPUs a process each."""
    version: str = Field(default="2.60.0", pattern=r"\d+\.\d+\.\d+")
    """Version of Ray in kubernetes.images.train; 2.52 or later, whose servers ask for a token."""
    head: RayHeadResources = RayHeadResources()
    ttl_s: int = Field(default=300, ge=0)
    """How long the cluster of a finished job stays, for its logs."""

    @field_validator("version")
    @classmethod
    def _has_tokens(cls, version: str) -> str:
        major, minor, _ = (int(part) for part in version.split("."))
        if (major, minor) < _FIRST_RAY_WITH_TOKENS:
            raise ValueError(
                f"Ray {version} lets everybody who reaches its dashboard run programs; take 2.52.0 "
                "or later"
            )
        return version


class LlmInferenceServiceConfig(Section):
    """Serving by KServe's LLMInferenceService."""

    artifacts: str = Field(
        default="s3://espalier-mlflow", pattern=r"s3://[a-z0-9][-.a-z0-9]+(/.*)?"
    )
    """Where MLflow keeps what it lists as mlflow-artifacts:/ (MLFLOW_ARTIFACTS_DESTINATION)."""
    tls: bool = False
    """Whether KServe has its model servers speak HTTPS (enableLLMInferenceServiceTLS of its config
    map). Their certificates are signed by KServe itself, and the controller does not check them."""


class TopologySpread(Section):
    """How evenly sandboxes lie on nodes or zones."""

    topology_key: str = Field(default="kubernetes.io/hostname", min_length=1)
    """Label of nodes whose values are the places to spread over."""
    max_skew: int = Field(default=1, ge=1)
    """How many more sandboxes one place may have than another."""
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = "ScheduleAnyway"
    """Whether a sandbox that would lie unevenly starts all the same, or waits."""


class SandboxPodsConfig(Section):
    """Pods that the agent's code runs in."""

    runtime_class: DnsLabel = "gvisor"
    """The RuntimeClass; "runc" of k8s/overlays/local shares the node's kernel with the sandbox."""
    agent_sandbox: Literal["auto", "always", "never"] = "auto"
    """Whether a sandbox is a claim of agent-sandbox (v1beta1), whose controller keeps warm pods:
    "auto" where the cluster has its extensions; "never" makes pods of our own there as well."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that sandboxes run on, beside those that the RuntimeClass demands."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that sandboxes put up with, beside those of the RuntimeClass."""
    topology_spread: tuple[TopologySpread, ...] = (TopologySpread(),)
    """Over nodes by default, as far as there is room: a node that is lost takes few sandboxes of a
    run with it. Empty leaves it to the scheduler, which fills nodes."""
    image_pull_secrets: tuple[PullSecret, ...] = ()
    """Secrets of the sandbox namespace by which nodes pull `sandbox.image`, named espalier-pull or
    espalier-pull-...; sandboxes themselves hold no secret."""
    resources: SandboxResources = SandboxResources()
    scratch: Literal["memory", "disk"] = "memory"
    """Where /workspace and /tmp lie. In memory they are full at exactly disk_limit each; on the
    node's disk, for large repositories, the kubelet looks every few seconds and evicts."""
    internet_sockets: bool = False
    """Whether programs may open them. Without, nothing is reached from a sandbox, its own loopback
    included, on any cluster; with them that is up to the NetworkPolicy, and to whether the network
    plugin enforces it. Tests of a repository that serve on loopback need them."""
    ttl_s: int = Field(default=4 * 3600, ge=60)
    """Lifetime of a sandbox; then its node ends it, and the collector deletes its pod."""

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
    """Put on every object of the run and on its pods, for accounting, such as team and owner, the
    names that cost tools look for. espalier.dev/profile, the profile's name, is put beside them."""
    queue: DnsLabel | None = None
    """Kueue's LocalQueue, of Jobs, TrainJobs, RayJobs and Kubeflow's steps; without it pods start
    as soon as they fit."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that stages run on."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that the pods of stages put up with."""
    resources: StageResources = StageResources()
    """Resources of stages without a GPU."""
    workspace_claim: DnsLabel | None = None
    """Volume claim under the artifacts of a running stage: a stage whose pod is lost goes on from
    its checkpoints. Without it they end with the pod."""
    cache_claim: DnsLabel | None = None
    """Volume claim of what is downloaded or compiled once: base models, kernels."""
    s3_secret: DnsLabel = "espalier-s3"
    """Secret with access_key and secret_key."""
    s3_credentials: Literal["secret", "account"] = "secret"
    """"secret" gives stages the keys of s3_secret, "account" none: the platform gives the pods'
    service accounts a role (k8s/platforms/eks), whose keys end after an hour and are renewed."""
    endpoints: DnsLabel = "espalier-endpoints"
    """ConfigMap whose keys become environment variables: where S3 and MLflow are."""
    retries: int = Field(default=3, ge=0)
    """How often a stage is started again after its pod died; not after it refused its input. Under
    Kubeflow this needs the settings of k8s/kubeflow/controller."""
    deadline_s: int = Field(default=24 * 3600, ge=60)
    """A stage that takes longer is ended: as a Job with its retries included, under Kubeflow each
    attempt by itself."""
    keep_s: int = Field(default=24 * 3600, ge=0)
    """How long a finished Job stays, for its log."""
    trainer: Literal["job", "trainjob", "rayjob"] = "job"
    """Where the training stages run. "job": in their own pods. "trainjob": continue_pretraining,
    warm_start and train as a TrainJob of Kubeflow Trainer each, on one node; needs k8s/trainer.
    "rayjob": train as a RayJob of KubeRay, on the nodes of kubernetes.ray.workers. The pod of a
    stage that runs elsewhere needs no GPU: it launches the object and watches it."""
    serving: Literal["deployment", "llmisvc"] = "deployment"
    """What serves the champion: two Deployments behind one Service, or two LLMInferenceServices of
    KServe in one routing group (k8s/overlays/kserve)."""
    llmisvc: LlmInferenceServiceConfig = LlmInferenceServiceConfig()
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
            if _RESERVED.match(key) and key != PROFILE_LABEL:
                raise ValueError(f"kubernetes.labels: {key} is set by espalier; choose another key")
            if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
                raise ValueError(f"kubernetes.labels: {key}={value} is no label in Kubernetes")
        return self

    def named(self, profile: str) -> Self:
        """The same settings with the profile's name among the labels, as far as one can hold it."""
        value = re.sub(r"[^-._A-Za-z0-9]+", "-", profile)[:63].strip("-._")
        return self.model_copy(update={"labels": {**self.labels, PROFILE_LABEL: value}})

    @property
    def processes_on_ray_node(self) -> int:
        """Processes of training on each of `ray.workers`: one a GPU, or one that has the CPUs."""
        return self.gpus.count or 1

    @model_validator(mode="after")
    def _nodes_are_those_of_a_ray_job(self) -> Self:
        workers = self.ray.workers
        if workers and self.trainer != "rayjob":
            raise ValueError(
                f"kubernetes.ray.workers={workers} counts the nodes of a RayJob, and training runs "
                f'as kubernetes.trainer = "{self.trainer}"; set kubernetes.trainer = "rayjob" for '
                "them, or kubernetes.ray.workers = 0"
            )
        if self.trainer == "rayjob" and not workers:
            raise ValueError(
                'kubernetes.trainer = "rayjob" has no nodes to train on; set '
                "kubernetes.ray.workers to their number, or kubernetes.trainer to "
                '"job" or "trainjob", which have one'
            )
        return self

    @model_validator(mode="after")
    def _nodes_share_files(self) -> Self:
        if self.ray.workers and self.workspace_claim is None:
            raise ValueError(
                "kubernetes.ray.workers share checkpoints and artifacts; name a claim that several "
                "nodes can write (ReadWriteMany) as kubernetes.workspace_claim"
            )
        return self


def require_places(
    training: TrainingConfig, hardware: HardwareConfig, kubernetes: KubernetesConfig
) -> None:
    """Check processes against what a pod has, or the nodes of a RayJob have together.

    Raises:
        ValueError: too many of them, nodes that would idle, or a device that nodes have not.
    """
    if training.processes > 1 and ":" in hardware.device:
        raise ValueError(
            f'hardware.device = "{hardware.device}" is one device, and training.processes='
            f"{training.processes} have one each; name its kind alone"
        )
    processes, gpus, nodes = training.processes, kubernetes.gpus.count, kubernetes.ray.workers
    if not nodes:
        if 0 < gpus < processes:
            raise ValueError(
                f"training.processes={processes} share kubernetes.gpus.count={gpus} in a pod; set "
                "training.processes to that number, ask for more GPUs, or for more nodes "
                '(kubernetes.trainer = "rayjob")'
            )
        return
    on_node = kubernetes.processes_on_ray_node
    places = f"kubernetes.ray.workers={nodes} nodes have room for {nodes * on_node}, " + (
        f"one on each of kubernetes.gpus.count={gpus} GPUs" if gpus else "one each without GPUs"
    )
    if processes > nodes * on_node:
        raise ValueError(
            f"training.processes={processes} are too many: {places}; lower it, or add nodes"
        )
    if processes <= (nodes - 1) * on_node:
        raise ValueError(
            f"training.processes={processes} leave a node without work: {places}; set it to that, "
            "or take nodes away"
        )
    if hardware.device != "auto" and hardware.device.startswith("cpu") == bool(gpus):
        raise ValueError(
            f'hardware.device = "{hardware.device}" is not what nodes with kubernetes.gpus.count='
            f'{gpus} compute on; leave it "auto"'
        )

"""Profile section `kubernetes`: pods, Ray, sandboxes and Kubeflow, in Kubernetes' spelling.

No stage's digest includes it, because where a stage runs does not change what it computes.
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
    """Value of a Kubernetes quantity: cores for "500m", bytes for "2Gi".

    Raises:
        ValueError: the text is not a Kubernetes quantity.
    """
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        raise ValueError(
            f"{quantity!r} is not a quantity; write it as 500m or 2 (cores), 512Mi or 8Gi"
        )
    return Decimal(match[1]) * _FACTORS[match[2]]


def _number_as_text(value: object) -> object:
    """Turn an integer, as TOML has whole cores, into text; leave a bool alone."""
    return str(value) if type(value) is int else value


def _quantity(text: str) -> str:
    amount(text)
    return text


def _dns_label(text: str) -> str:
    if not _DNS_LABEL.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a Kubernetes name: at most 63 lower-case letters, digits and dashes"
        )
    return text


def _pinned_image(text: str) -> str:
    tag = _TAG.fullmatch(text)
    if not _DIGEST.fullmatch(text) and (tag is None or tag[1] == "latest"):
        raise ValueError(
            f"{text!r} may name another image tomorrow; use a digest (IMAGE@sha256:...), or a tag "
            "other than latest"
        )
    return text


def _time_zone(text: str) -> str:
    try:
        if text != "UTC":  # needs no time zone database, which a container may lack
            ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{text!r} is not a known time zone; one is Europe/Paris") from error
    return text


def _pull_secret(text: str) -> str:
    if not text.startswith("espalier-pull"):
        raise ValueError(
            f"{text!r} cannot be a secret for pulling images: the sandbox namespace allows only "
            "names that begin with espalier-pull"
        )
    return _dns_label(text)


Quantity = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_quantity)]
DnsLabel = Annotated[str, AfterValidator(_dns_label)]
PullSecret = Annotated[str, AfterValidator(_pull_secret)]
TimeZone = Annotated[str, AfterValidator(_time_zone)]
PinnedImage = Annotated[str, AfterValidator(_pinned_image)]
"""Name of an image with a digest, or with a tag other than latest."""


class KubeflowConfig(Section):
    """A server of Kubeflow Pipelines, and names for what is submitted to it."""

    endpoint: str | None = Field(default=None, pattern=r"^https?://[^@?#\s]+$")
    """Address of the API, such as http://localhost:8888 or https://HOST/pipeline; default:
    KF_PIPELINES_ENDPOINT."""
    ui: str | None = Field(default=None, pattern=r"^https?://[^@?#\s]+$")
    """Address of Kubeflow's web pages, for links to runs; default: KF_PIPELINES_UI_ENDPOINT, or the
    endpoint if it serves them."""
    token_file: Path | None = None
    """File with a bearer token, read by every command; default: KF_PIPELINES_TOKEN, the file
    KF_PIPELINES_SA_TOKEN_PATH, or no token."""
    namespace: DnsLabel | None = None
    """Namespace of the user's Kubeflow profile in multi-user mode; None with a single user."""
    service_account: DnsLabel | None = None
    """Service account of a run's pods; espalier-kubeflow if steps use sandboxes or launch
    RayJobs."""
    pipeline: DnsLabel = "espalier-data-to-model"
    """Name under which the compiled pipeline is uploaded."""
    experiment: str = Field(default="espalier", min_length=1)
    """Kubeflow experiment of the runs."""
    timezone: TimeZone = "UTC"
    """Time zone of this Kubeflow's cron schedules: `cronScheduleTimezone` in its config map
    pipeline-install-config."""
    retry_pause_s: int = Field(default=30, ge=0)
    """Pause before the first retry of a step; each further pause is twice as long."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that one request may take."""
    attempts: int = Field(default=4, ge=1)
    """Attempts at a read-only request while the server is away or fails."""


PROFILE_LABEL = "espalier.dev/profile"
_RESERVED = re.compile(r"(app\.kubernetes\.io|espalier\.dev|kueue\.x-k8s\.io|ray\.io)/")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")


class ImagesConfig(Section):
    """Images built from the targets of components/Dockerfile, as this cluster pulls them."""

    cpu: PinnedImage = f"espalier-cpu:{__version__}"
    """Image of the stages without a GPU."""
    train: PinnedImage = f"espalier-train:{__version__}"
    """Image of the stages that use a GPU, and of Ray's head and workers."""

    def by_tag(self) -> list[str]:
        """Images without a digest, each once: a registry may give another image for their tag."""
        images = dict.fromkeys((self.cpu, self.train))
        return [image for image in images if not _DIGEST.fullmatch(image)]


class PodResources(Section):
    """Requests and limits of a container."""

    cpu_request: Quantity
    """CPU that the node reserves for it."""
    memory_request: Quantity
    """Memory that the node reserves for it."""
    cpu_limit: Quantity
    """CPU beyond which it is throttled."""
    memory_limit: Quantity
    """Memory beyond which it is killed."""
    disk_limit: Quantity
    """Disk of its writable volumes and log together, beyond which the pod is evicted."""

    @model_validator(mode="after")
    def _requests_are_within_limits(self) -> Self:
        for kind in ("cpu", "memory"):
            request, limit = getattr(self, f"{kind}_request"), getattr(self, f"{kind}_limit")
            if amount(request) > amount(limit):
                raise ValueError(
                    f"{kind}_request={request} exceeds {kind}_limit={limit}, which no node accepts"
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
    """Resources of a stage or Ray worker that uses a node's GPUs."""

    cpu_request: Quantity = "8"
    memory_request: Quantity = "64Gi"
    cpu_limit: Quantity = "16"
    memory_limit: Quantity = "96Gi"
    disk_limit: Quantity = "100Gi"


class RayHeadResources(PodResources):
    """Resources of Ray's head, which runs Ray's own servers."""

    cpu_request: Quantity = "2"
    memory_request: Quantity = "8Gi"
    cpu_limit: Quantity = "4"
    memory_limit: Quantity = "16Gi"
    disk_limit: Quantity = "50Gi"


class SandboxResources(PodResources):
    """Resources of a sandbox: many share a node, so each requests little and may burst."""

    cpu_request: Quantity = "10m"
    memory_request: Quantity = "64Mi"
    cpu_limit: Quantity = "1"
    memory_limit: Quantity = "1536Mi"
    disk_limit: Quantity = "256Mi"


class Toleration(Section):
    """A taint that pods tolerate."""

    key: str = Field(min_length=1)
    """Key of the taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """"Exists" tolerates any value of the taint, "Equal" only `value`."""
    value: str = ""
    """Value of the taint, for operator = "Equal"."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; empty tolerates every effect."""

    @model_validator(mode="after")
    def _only_equal_compares(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError(
                f'a toleration of {self.key} with value={self.value!r} needs operator = "Equal"'
            )
        return self


class GpuConfig(Section):
    """Accelerators of the stages that run a policy."""

    count: int = Field(default=0, ge=0)
    """GPUs of each of those stages' pods, and of each Ray worker."""
    resource: str = "nvidia.com/gpu"
    """Resource name of the device plugin's GPUs."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the GPU nodes, in addition to kubernetes.node_selector."""
    tolerations: tuple[Toleration, ...] = (Toleration(key="nvidia.com/gpu"),)
    resources: GpuNodeResources = GpuNodeResources()
    shared_memory: Quantity = "16Gi"
    """Size of /dev/shm: NCCL and data loaders outgrow a container's default of 64 MiB."""

    @model_validator(mode="after")
    def _pool_and_memory_fit(self) -> Self:
        if self.node_selector and not self.count:
            raise ValueError(
                "kubernetes.gpus.node_selector selects GPU nodes, but no stage requests a GPU; set "
                "kubernetes.gpus.count, or choose nodes by kubernetes.node_selector"
            )
        if amount(self.shared_memory) >= amount(self.resources.memory_limit):
            raise ValueError(
                f"kubernetes.gpus.shared_memory={self.shared_memory} counts as memory of the "
                f"container and has to be below its memory_limit={self.resources.memory_limit}"
            )
        return self


_FIRST_RAY_WITH_TOKENS = (2, 52)


class RayConfig(Section):
    """The Ray cluster of a KubeRay RayJob."""

    version: str = Field(default="2.60.0", pattern=r"\d+\.\d+\.\d+")
    """Version of Ray in kubernetes.images.train; 2.52 or later, whose servers require a token."""
    head: RayHeadResources = RayHeadResources()
    ttl_s: int = Field(default=300, ge=0)
    """Seconds that the cluster of a finished job stays, for its logs."""

    @field_validator("version")
    @classmethod
    def _has_tokens(cls, version: str) -> str:
        major, minor, _ = (int(part) for part in version.split("."))
        if (major, minor) < _FIRST_RAY_WITH_TOKENS:
            raise ValueError(
                f"Ray {version} lets anybody who reaches its dashboard run programs; use 2.52.0 or "
                "later"
            )
        return version


class LlmInferenceServiceConfig(Section):
    """Serving by KServe's LLMInferenceService."""

    artifacts: str = Field(
        default="s3://espalier-mlflow", pattern=r"s3://[a-z0-9][-.a-z0-9]+(/.*)?"
    )
    """Location in S3 behind MLflow's mlflow-artifacts:/ (MLFLOW_ARTIFACTS_DESTINATION)."""
    tls: bool = False
    """Whether KServe's model servers speak HTTPS (enableLLMInferenceServiceTLS of its config map).
    KServe signs their certificates itself, and the controller does not verify them."""


class TopologySpread(Section):
    """A constraint that spreads sandboxes over nodes or zones."""

    topology_key: str = Field(default="kubernetes.io/hostname", min_length=1)
    """Node label; sandboxes are spread over its values."""
    max_skew: int = Field(default=1, ge=1)
    """Largest difference in the number of sandboxes between two values of the label."""
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = "ScheduleAnyway"
    """Whether a sandbox that would exceed `max_skew` starts anyway, or waits."""


class SandboxPodsConfig(Section):
    """Pods that run the agent's code."""

    runtime_class: DnsLabel = "gvisor"
    """RuntimeClass of the pods; "runc" of k8s/overlays/local shares the node's kernel."""
    agent_sandbox: Literal["auto", "always", "never"] = "auto"
    """Whether a sandbox is a claim of agent-sandbox (v1beta1), whose controller keeps warm pods:
    "auto" if the cluster has its extensions; "never" always makes plain pods."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that sandboxes run on, in addition to the RuntimeClass's."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that sandboxes tolerate, in addition to the RuntimeClass's."""
    topology_spread: tuple[TopologySpread, ...] = (TopologySpread(),)
    """Constraints that spread sandboxes; by default over nodes if there is room, so that a lost
    node takes few sandboxes of a run with it. Empty leaves it to the scheduler, which fills
    nodes."""
    image_pull_secrets: tuple[PullSecret, ...] = ()
    """Secrets of the sandbox namespace with which nodes pull `sandbox.image`, named espalier-pull
    or espalier-pull-...; sandboxes themselves have no secret."""
    resources: SandboxResources = SandboxResources()
    scratch: Literal["memory", "disk"] = "memory"
    """Storage of /workspace and /tmp. In memory each is full at exactly disk_limit; on the node's
    disk, for large repositories, the kubelet checks every few seconds and evicts."""
    internet_sockets: bool = False
    """Whether programs may open internet sockets. Without them a sandbox reaches nothing, not even
    its own loopback, on any cluster. With them that depends on the NetworkPolicy and a network
    plugin that enforces it. Repositories whose tests serve on loopback need them."""
    ttl_s: int = Field(default=4 * 3600, ge=60)
    """Lifetime of a sandbox, s; then its node ends it, and the collector deletes its pod."""

    @model_validator(mode="after")
    def _scratch_leaves_memory(self) -> Self:
        resources = self.resources
        if self.scratch == "memory" and 2 * amount(resources.disk_limit) >= amount(
            resources.memory_limit
        ):
            raise ValueError(
                f"kubernetes.sandboxes: /workspace and /tmp of disk_limit={resources.disk_limit} "
                f"each leave nothing of memory_limit={resources.memory_limit}; lower the first, "
                'raise the second, or set scratch = "disk"'
            )
        return self


class KubernetesConfig(Section):
    """Settings of a run's objects on a cluster where `k8s/` is installed."""

    pipeline_namespace: DnsLabel = "espalier-pipeline"
    """Namespace of the stages."""
    sandbox_namespace: DnsLabel = "espalier-sandboxes"
    """Namespace of the sandboxes."""
    images: ImagesConfig = ImagesConfig()
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of every object of the run and its pods, for accounting, such as team and owner, which
    cost tools look for. espalier.dev/profile, the profile's name, is always added."""
    queue: DnsLabel | None = None
    """Kueue's LocalQueue for Jobs, TrainJobs, RayJobs and Kubeflow's steps; without it pods start
    as soon as they fit."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that stages run on."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that the pods of stages tolerate."""
    resources: StageResources = StageResources()
    """Resources of stages without a GPU."""
    workspace_claim: DnsLabel | None = None
    """Volume claim for the artifacts of a running stage: a stage that lost its pod resumes from
    its checkpoints. Without it they are lost with the pod. Several nodes, and every RayJob, need
    one that all of them can write (ReadWriteMany)."""
    cache_claim: DnsLabel | None = None
    """Volume claim for downloads and compiled files: base models, kernels."""
    s3_secret: DnsLabel = "espalier-s3"
    """Secret with access_key and secret_key."""
    s3_credentials: Literal["secret", "account"] = "secret"
    """"secret" gives stages the keys of s3_secret. "account" gives them none: the platform assigns
    a role to the pods' service accounts (k8s/platforms/eks), whose keys are renewed every hour."""
    endpoints: DnsLabel = "espalier-endpoints"
    """ConfigMap with the addresses of S3 and MLflow; its keys become environment variables."""
    mounted_secrets: tuple[DnsLabel, ...] = Field(default=(), exclude_if=lambda it: not it)
    """Secrets whose entries every stage's pod has as files, /secrets/NAME/ENTRY: keys that a
    profile names by file, such as rollout.vllm.key_file."""
    retries: int = Field(default=3, ge=0)
    """Restarts of a stage whose pod died; a stage that refused its input is not restarted.
    Under Kubeflow this needs the settings of k8s/kubeflow/controller."""
    deadline_s: int = Field(default=24 * 3600, ge=60)
    """Seconds after which a stage is ended: a Job together with its retries, under Kubeflow each
    attempt separately."""
    trainer: Literal["job", "trainjob", "rayjob"] = "job"
    """Pods of the training stages. "job": their own. "trainjob": continue_pretraining,
    warm_start and train each as a TrainJob of Kubeflow Trainer; needs k8s/trainer. "rayjob": train
    as a RayJob of KubeRay. The pod of a stage that runs elsewhere needs no GPU: it launches the
    object and watches it."""
    nodes: int = Field(default=1, ge=1)
    """Nodes on which train runs with trainer = "trainjob" or "rayjob", each with gpus.count GPUs.
    The nodes of a TrainJob share training.processes equally. A node of a RayJob has a place for one
    training process or rollout worker per GPU, or without GPUs for a single one."""
    serving: Literal["deployment", "llmisvc"] = "deployment"
    """Objects that serve the champion: two Deployments behind one Service, or two
    LLMInferenceServices of KServe in one routing group (k8s/overlays/kserve)."""
    llmisvc: LlmInferenceServiceConfig = LlmInferenceServiceConfig()
    gpus: GpuConfig = GpuConfig()
    ray: RayConfig = RayConfig()
    sandboxes: SandboxPodsConfig = SandboxPodsConfig()
    kubeflow: KubeflowConfig = KubeflowConfig()

    @model_validator(mode="after")
    def _sandboxes_live_apart(self) -> Self:
        if self.pipeline_namespace == self.sandbox_namespace:
            raise ValueError(
                f"kubernetes.sandbox_namespace={self.sandbox_namespace} is the pipeline's own: "
                "whoever may create sandboxes could then create pods with the pipeline's secrets. "
                "Name two namespaces"
            )
        return self

    @model_validator(mode="after")
    def _labels_are_free_ones(self) -> Self:
        for key, value in self.labels.items():
            if _RESERVED.match(key) and key != PROFILE_LABEL:
                raise ValueError(f"kubernetes.labels: {key} is set by espalier; choose another key")
            if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
                raise ValueError(f"kubernetes.labels: {key}={value} is not a Kubernetes label")
        return self

    def named(self, profile: str) -> Self:
        """The same settings with a label of the profile's name, cut to what a label may hold."""
        value = re.sub(r"[^-._A-Za-z0-9]+", "-", profile)[:63].strip("-._")
        return self.model_copy(update={"labels": {**self.labels, PROFILE_LABEL: value}})

    def pods_of(self, stage: str) -> int:
        """Number of pods that run the command of a stage; a RayJob's driver reaches the others."""
        return self.nodes if stage == "train" and self.trainer == "trainjob" else 1

    @property
    def processes_on_ray_node(self) -> int:
        """Processes on each node of a RayJob: one per GPU, or one that uses the CPUs."""
        return self.gpus.count or 1

    @model_validator(mode="after")
    def _a_job_has_one_node(self) -> Self:
        if self.nodes > 1 and self.trainer == "job":
            raise ValueError(
                f'kubernetes.nodes={self.nodes}, but kubernetes.trainer = "job" has one pod; set '
                'kubernetes.trainer to "trainjob" or "rayjob", or kubernetes.nodes to 1'
            )
        return self

    @model_validator(mode="after")
    def _nodes_share_files(self) -> Self:
        if (self.nodes > 1 or self.trainer == "rayjob") and self.workspace_claim is None:
            raise ValueError(
                f'the nodes of kubernetes.trainer = "{self.trainer}" share checkpoints and '
                "artifacts; set kubernetes.workspace_claim to a claim that several nodes can write "
                "(ReadWriteMany)"
            )
        return self


def require_places(
    training: TrainingConfig, hardware: HardwareConfig, kubernetes: KubernetesConfig
) -> None:
    """Check that the training processes fit the GPUs of the pods, or the nodes of a RayJob.

    Raises:
        ValueError: too many processes, nodes that would idle, or a device that nodes do not have.
    """
    if training.processes > 1 and ":" in hardware.device:
        raise ValueError(
            f'hardware.device = "{hardware.device}" is one device, but training.processes='
            f"{training.processes} need one each; name only its kind"
        )
    processes, gpus, nodes = training.processes, kubernetes.gpus.count, kubernetes.nodes
    workers = training.rollout_workers
    if kubernetes.trainer != "rayjob":
        if processes % nodes:
            raise ValueError(
                f"training.processes={processes} cannot be shared equally by kubernetes.nodes="
                f"{nodes}; set it to a multiple"
            )
        if workers and kubernetes.trainer == "trainjob":
            raise ValueError(
                f"training.rollout_workers={workers} need a Ray cluster, which a TrainJob has not; "
                'set kubernetes.trainer = "rayjob"'
            )
        if 0 < gpus < processes // nodes:
            raise ValueError(
                f"training.processes={processes} exceeds kubernetes.gpus.count={gpus} of "
                f"{nodes} node{'s' if nodes > 1 else ''}; set it to the number of GPUs, or request "
                "more GPUs or nodes (kubernetes.nodes)"
            )
        return
    on_node = kubernetes.processes_on_ray_node
    places = f"kubernetes.nodes={nodes} nodes have room for {nodes * on_node}, " + (
        f"one on each of kubernetes.gpus.count={gpus} GPUs" if gpus else "one each without GPUs"
    )
    placed = f"training.processes={processes}" + (
        f" and training.rollout_workers={workers}" if workers else ""
    )
    if processes + workers > nodes * on_node:
        raise ValueError(f"{placed} are too many: {places}; lower it, or add nodes")
    if processes + workers <= (nodes - 1) * on_node:
        raise ValueError(
            f"{placed} leave a node without work: {places}; set it to that, or remove nodes"
        )
    if hardware.device != "auto" and hardware.device.startswith("cpu") == bool(gpus):
        raise ValueError(
            f'hardware.device = "{hardware.device}" does not fit nodes with '
            f'kubernetes.gpus.count={gpus}; leave it "auto"'
        )

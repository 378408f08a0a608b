"""Settings of a step's pod on the cluster, in the compiled pipeline.

`cluster/objects/job.py` has the same settings for a step that runs as a Job. For single steps,
Kubeflow supports no account, runtime class, priority class, group of volumes or limit of ephemeral
storage: a run has one account (`kubernetes.kubeflow.service_account`), `disk_limit` is the size of
each volume that the step writes to, and the others are not set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from kfp import dsl, kubernetes

from espalier.chain import Stage
from espalier.cluster.objects.job import (
    OWNER_VARIABLES,
    RUN_ID_VARIABLE,
    gives_weights,
    launches,
    stage_gpus,
    stage_image,
    stage_reach,
    stage_resources,
)
from espalier.cluster.objects.names import (
    OWN_LABEL_VARIABLES,
    QUEUE_LABEL,
    RUN_LABEL,
    STAGE_LABEL,
)
from espalier.cluster.objects.pods import (
    CACHE_MOUNT,
    KUBEFLOW_ENDPOINTS,
    S3_KEYS,
    SCRATCH_MOUNT,
    SECRETS_MOUNT,
    USER,
    WORKSPACE_MOUNT,
)
from espalier.config import KubernetesConfig, Toleration
from espalier.config.cluster import amount
from espalier.records import ProfileError
from espalier.steps.components import LAUNCHES, launching_component, stage_component

_SHARED_MEMORY = "/dev/shm"
_BACKOFF_FACTOR = 2
_RUN_LABEL = "pipeline/runid"
"""Label with the run's id that Kubeflow sets on its pods."""
_ARTIFACT_VOLUMES = {"s3-scratch": "/s3", "minio-scratch": "/minio", "gcs-scratch": "/gcs"}
"""Volumes in every step's pod (Kubeflow 2.17, argocompiler/container.go), one of which has its
artifacts. A mount of the same volume and path is merged with them, and adds its size limit."""


def step_component(
    stage: Stage, settings: KubernetesConfig | None
) -> Callable[..., dsl.PipelineTask]:
    """The component of a stage, or the one that launches it as a RayJob or TrainJob."""
    is_launched = settings is not None and launches(stage.name, settings)
    component = launching_component if is_launched else stage_component
    return cast("Callable[..., dsl.PipelineTask]", component(stage.name))


def place_pod(task: dsl.PipelineTask, settings: KubernetesConfig) -> None:
    """Apply the settings to the step's pod.

    The name of the step's component is that of its stage, with the prefix launch_ or without.
    """
    stage = task.name.replace("-", "_")
    if stage.startswith(LAUNCHES):
        stage = stage.removeprefix(LAUNCHES)
        _name_pod(task)
    task.set_container_image(stage_image(stage, settings))
    kubernetes.set_image_pull_policy(task, "IfNotPresent")
    kubernetes.set_security_context(task, run_as_user=USER, run_as_group=USER, run_as_non_root=True)
    _limit_time(task, settings)
    queue = {QUEUE_LABEL: settings.queue} if settings.queue else {}
    labels = {STAGE_LABEL: stage, **settings.labels, **stage_reach(stage, settings), **queue}
    for key, value in labels.items():
        kubernetes.add_pod_label(task, key, value)
    _give_resources(task, stage, settings)
    _choose_nodes(task, stage, settings)
    _mount(task, stage, settings)
    # the stages of a run find their common tracked run by this variable
    kubernetes.use_field_path_as_env(task, RUN_ID_VARIABLE, f"metadata.labels['{_RUN_LABEL}']")
    # the run's id is only known when the run starts, and only as Kubeflow's own label
    own = {RUN_LABEL: _RUN_LABEL, STAGE_LABEL: STAGE_LABEL}
    for label, source in own.items():
        variable = OWN_LABEL_VARIABLES[label]
        kubernetes.use_field_path_as_env(task, variable, f"metadata.labels['{source}']")
    # optional, because Kubeflow's launcher copies artifacts with its own credentials, and a cluster
    # may have no MLflow
    if settings.s3_credentials == "secret":
        kubernetes.use_secret_as_env(
            task, settings.s3_secret, {key: name for name, key in S3_KEYS.items()}, optional=True
        )
    kubernetes.use_config_map_as_env(task, settings.endpoints, KUBEFLOW_ENDPOINTS, optional=True)


def _limit_time(task: dsl.PipelineTask, settings: KubernetesConfig) -> None:
    """Set the deadline of an attempt, and the longest duration of all attempts together.

    Argo counts the longest duration from the creation of the first pod, including the wait for a
    node, and ends a running attempt at its end. So each attempt may wait as long as it may run.
    """
    pause_s, retries = settings.kubeflow.retry_pause_s, settings.retries
    pauses_s = sum(pause_s * _BACKOFF_FACTOR**number for number in range(retries))
    longest_s = 2 * (retries + 1) * settings.deadline_s + pauses_s
    task.set_retry(
        retries,
        backoff_duration=f"{pause_s}s",
        backoff_factor=_BACKOFF_FACTOR,
        backoff_max_duration=f"{longest_s}s",
    )
    kubernetes.set_timeout(task, settings.deadline_s)


def _name_pod(task: dsl.PipelineTask) -> None:
    """Set the pod's name and UID as variables, by which the launched object's owner is found."""
    api_version, kind, name, uid = OWNER_VARIABLES
    task.set_env_variable(api_version, "v1").set_env_variable(kind, "Pod")
    kubernetes.use_field_path_as_env(task, name, "metadata.name")
    kubernetes.use_field_path_as_env(task, uid, "metadata.uid")


def _give_resources(task: dsl.PipelineTask, stage: str, settings: KubernetesConfig) -> None:
    resources = stage_resources(stage, settings)
    task.set_cpu_request(resources.cpu_request).set_cpu_limit(resources.cpu_limit)
    task.set_memory_request(_whole_bytes(resources.memory_request))
    task.set_memory_limit(_whole_bytes(resources.memory_limit))
    if gpus := stage_gpus(stage, settings):
        task.set_accelerator_type(settings.gpus.resource).set_accelerator_limit(gpus)


def _choose_nodes(task: dsl.PipelineTask, stage: str, settings: KubernetesConfig) -> None:
    selector, tolerated = dict(settings.node_selector), settings.tolerations
    if stage_gpus(stage, settings):
        selector |= settings.gpus.node_selector
        tolerated += settings.gpus.tolerations
    for label, value in selector.items():
        kubernetes.add_node_selector(task, label, value)
    for toleration in tolerated:
        _tolerate(task, toleration)


def _tolerate(task: dsl.PipelineTask, toleration: Toleration) -> None:
    kubernetes.add_toleration(
        task,
        key=toleration.key,
        operator=toleration.operator,
        value=toleration.value or None,
        effect=toleration.effect or None,
    )


def _mount(task: dsl.PipelineTask, stage: str, settings: KubernetesConfig) -> None:
    disk_limit = stage_resources(stage, settings).disk_limit
    for name, path in {"tmp": SCRATCH_MOUNT, **_ARTIFACT_VOLUMES}.items():
        kubernetes.empty_dir_mount(task, name, path, size_limit=disk_limit)
    if settings.workspace_claim is not None and gives_weights(stage, settings):
        if settings.workspace_claim == settings.cache_claim:
            raise ProfileError(
                "kubernetes.workspace_claim and kubernetes.cache_claim are the same claim, and a "
                "step of Kubeflow can mount it at one path only; give each its own"
            )
        kubernetes.mount_pvc(task, settings.workspace_claim, WORKSPACE_MOUNT)
    if settings.cache_claim is not None:
        kubernetes.mount_pvc(task, settings.cache_claim, CACHE_MOUNT)
        task.set_env_variable("XDG_CACHE_HOME", CACHE_MOUNT)
    for secret in settings.mounted_secrets:
        kubernetes.use_secret_as_volume(task, secret, f"{SECRETS_MOUNT}/{secret}")
    if stage_gpus(stage, settings):
        kubernetes.empty_dir_mount(
            task, "shm", _SHARED_MEMORY, medium="Memory", size_limit=settings.gpus.shared_memory
        )


def _whole_bytes(quantity: str) -> str:
    """The quantity in bytes, because Kubeflow's compiler cannot parse 1.5Gi."""
    return str(int(amount(quantity)))

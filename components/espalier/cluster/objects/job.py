"""A stage as a Kubernetes Job, without Kubeflow; training on several nodes as a KubeRay RayJob."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from espalier.chain import CHAIN
from espalier.cluster.objects.names import (
    NAME_LABEL,
    QUEUE_LABEL,
    STAGE_LABEL,
    K8sObject,
    Owner,
    may_reach,
    object_labels,
    run_object_name,
)
from espalier.cluster.objects.pods import (
    LAUNCHER_ACCOUNT,
    STEP_ACCOUNT,
    TRAINER_ACCOUNT,
    RunContainer,
    bare_pod,
    run_pod,
)
from espalier.config import KubernetesConfig, PodResources

CONTAINER = "step"

RAY_STAGE = "train"
"""The stage that can run as a RayJob; its own pod is then a CPU step that watches the job."""

# resolve_profile is a step of the pipeline but not a stage: it is in neither set
_COMPUTING = frozenset(stage.name for stage in CHAIN if stage.uses_policy)
_PLAYING = frozenset(stage.name for stage in CHAIN if stage.plays_episodes)

RUN_ID_VARIABLE = "ESPALIER_RUN_ID"
OWNER_VARIABLES = tuple(f"ESPALIER_OWNER_{part}" for part in ("API_VERSION", "KIND", "NAME", "UID"))
"""Environment of a step that launches a RayJob: the run, and the owner of the RayJob. Steps of
Kubeflow name their Pod: the owner is then the controller of that (`cluster.ray_jobs`)."""

_REFUSED = (1, 2)
"""Exit codes of a Python error and of a refused command line."""


def stage_job(
    stage: str,
    command: Sequence[str],
    *,
    run_id: str,
    settings: KubernetesConfig,
    environment: Mapping[str, str],
) -> K8sObject:
    """The Job of one stage; a lost pod is retried, a refused input is not.

    Eviction, preemption and draining do not count as attempts. Exit codes 1 and 2 are the stage's
    own errors and fail the Job at once: the same input would fail again.

    Args:
        stage: name of the stage.
        command: of the container, from `orchestration.step_runner.container_command`.
        run_id: part of the Job's name; one Job per stage and run.
        settings: `kubernetes` of the profile.
        environment: of the step, such as the tracking run that it belongs to.

    Raises:
        ManifestError: `run_id` cannot be part of a name.
    """
    name = run_object_name(run_id, stage)
    labels = object_labels("espalier-step", "step", run_id, settings.labels)
    labels |= {STAGE_LABEL: stage}
    pod = run_pod(
        _container(stage, command, settings, environment),
        settings,
        account=_account(stage, settings),
    )
    if launches_ray(stage, settings):
        pod["containers"][0]["env"] += _launcher_environment(run_id)
    queue = {QUEUE_LABEL: settings.queue} if settings.queue else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": settings.pipeline_namespace,
            "labels": labels | queue,
        },
        "spec": {
            "backoffLimit": settings.retries,
            "activeDeadlineSeconds": settings.deadline_s,
            "ttlSecondsAfterFinished": settings.keep_s,
            # both pods would write the same artifact: the new one waits until the old one is gone
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _failure_rules()},
            "template": {
                "metadata": {"labels": labels | stage_reach(stage, settings)},
                "spec": pod,
            },
        },
    }


def episode_reach() -> dict[str, str]:
    """Labels for the network policies: destinations of a pod that plays episodes."""
    return may_reach("s3", "mlflow", "kubernetes", "sandboxes", "rollout")


def launches_ray(stage: str, settings: KubernetesConfig) -> bool:
    """Whether the stage's pod only launches and watches a RayJob."""
    return stage == RAY_STAGE and settings.ray.workers > 0


def stage_reach(stage: str, settings: KubernetesConfig) -> dict[str, str]:
    """Labels for the network policies: destinations of the stage's pod."""
    if launches_ray(stage, settings):
        return may_reach("s3", "mlflow", "kubernetes")
    return episode_reach() if stage in _PLAYING else may_reach("s3", "mlflow")


def stage_gpus(stage: str, settings: KubernetesConfig) -> int:
    """GPUs of the pod of `stage`."""
    computes = stage in _COMPUTING and not launches_ray(stage, settings)
    return settings.gpus.count if computes else 0


def stage_image(stage: str, settings: KubernetesConfig) -> str:
    """Image of the stage's pod: the training image if it has GPUs."""
    return settings.images.train if stage_gpus(stage, settings) else settings.images.cpu


def stage_resources(stage: str, settings: KubernetesConfig) -> PodResources:
    """CPU, memory and disk of the stage's pod."""
    return settings.gpus.resources if stage_gpus(stage, settings) else settings.resources


def _account(stage: str, settings: KubernetesConfig) -> str:
    if launches_ray(stage, settings):
        return LAUNCHER_ACCOUNT
    return TRAINER_ACCOUNT if stage in _PLAYING else STEP_ACCOUNT


def _container(
    stage: str,
    command: Sequence[str],
    settings: KubernetesConfig,
    environment: Mapping[str, str],
) -> RunContainer:
    return RunContainer(
        name=CONTAINER,
        image=stage_image(stage, settings),
        resources=stage_resources(stage, settings),
        command=command,
        environment=environment,
        gpus=stage_gpus(stage, settings),
    )


def _launcher_environment(run_id: str) -> list[K8sObject]:
    """The Job's name and UID come from labels that the Job controller sets on its pods."""
    owner = (
        {"value": "batch/v1"},
        {"value": "Job"},
        _from_label("batch.kubernetes.io/job-name"),
        _from_label("batch.kubernetes.io/controller-uid"),
    )
    named = zip(OWNER_VARIABLES, owner, strict=True)
    return [
        {"name": RUN_ID_VARIABLE, "value": run_id},
        *({"name": name, **source} for name, source in named),
    ]


def _from_label(key: str) -> K8sObject:
    return {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{key}']"}}}


def _failure_rules() -> list[K8sObject]:
    """Rules in order, the first match decides; other failures count as attempts."""
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": "FailJob",
            "onExitCodes": {
                "containerName": CONTAINER,
                "operator": "In",
                "values": list(_REFUSED),
            },
        },
    ]


RAY_NAME = "espalier-ray"
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Without it Ray reports usage to its makers."""


def training_ray_job(
    command: Sequence[str],
    *,
    run_id: str,
    owner: Owner,
    settings: KubernetesConfig,
    environment: Mapping[str, str],
) -> K8sObject:
    """A RayJob: a head, `kubernetes.ray.workers` worker nodes, and a submitter.

    Each training process takes one GPU. Without GPUs it takes one of Ray's CPU slots, which count
    processes and not cores.

    Ray's servers answer only to a token, which KubeRay makes for each cluster and gives its pods.

    Field names are those of ray.io/v1 (KubeRay 1.5.1, ray-operator/apis/ray/v1/rayjob_types.go).
    Kueue admits it as a whole when the profile names a queue; it asks for
    `shutdownAfterJobFinishes`, and sets `suspend` itself.

    Args:
        command: the driver, the first training process; Ray places it on a worker node.
        run_id: part of the RayJob's name.
        owner: the Job that launched it, or the Workflow of a run of Kubeflow; deleting that deletes
            the Ray cluster.
        settings: `kubernetes` of the profile, with `ray.workers` above 0.
        environment: of all Ray processes.

    Raises:
        ManifestError: `run_id` cannot be part of a name.
    """
    name = run_object_name(run_id, f"{RAY_STAGE}-ray")
    labels = object_labels(RAY_NAME, "training", run_id, settings.labels)
    labels |= {STAGE_LABEL: RAY_STAGE}
    environment = {**environment, **_QUIET}
    queue = {QUEUE_LABEL: settings.queue} if settings.queue else {}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": name,
            "namespace": settings.pipeline_namespace,
            "labels": labels | queue,
            "ownerReferences": [owner.reference()],
        },
        "spec": {
            "entrypoint": shlex.join(command),
            "entrypointNumGpus" if settings.gpus.count else "entrypointNumCpus": 1,
            "submissionMode": "K8sJobMode",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": settings.ray.ttl_s,
            "activeDeadlineSeconds": settings.deadline_s,
            "backoffLimit": settings.retries,
            "submitterPodTemplate": _ray_submitter(labels, settings),
            "rayClusterSpec": {
                "rayVersion": settings.ray.version,
                "authOptions": {"mode": "token"},
                "headGroupSpec": _ray_head(labels, settings, environment),
                "workerGroupSpecs": [_ray_workers(labels, settings, environment)],
            },
        },
    }


def _ray_head(
    labels: Mapping[str, str], settings: KubernetesConfig, environment: Mapping[str, str]
) -> K8sObject:
    container = RunContainer(
        name="ray-head",
        image=settings.images.train,
        resources=settings.ray.head,
        environment=environment,
    )
    # no slots on the head: its CPU is for Ray's own servers
    start = {"dashboard-host": "0.0.0.0", "num-cpus": "0"}
    return {"rayStartParams": start, "template": _ray_pod_template(container, labels, settings)}


def _ray_workers(
    labels: Mapping[str, str], settings: KubernetesConfig, environment: Mapping[str, str]
) -> K8sObject:
    kind = "gpu" if settings.gpus.count else "cpu"
    container = RunContainer(
        name="ray-worker",
        image=settings.images.train,
        resources=settings.gpus.resources if settings.gpus.count else settings.resources,
        environment=environment,
        gpus=settings.gpus.count,
    )
    # a fixed size: training cannot change its number of ranks
    workers = settings.ray.workers
    return {
        "groupName": kind,
        "replicas": workers,
        "minReplicas": workers,
        "maxReplicas": workers,
        "rayStartParams": {f"num-{kind}s": str(settings.processes_on_ray_node)},
        "template": _ray_pod_template(container, labels, settings),
    }


def _ray_pod_template(
    container: RunContainer, labels: Mapping[str, str], settings: KubernetesConfig
) -> K8sObject:
    reach = episode_reach() | may_reach("ray")
    pod = run_pod(container, settings, account=TRAINER_ACCOUNT)
    # KubeRay selects the head by a name label that it sets itself
    own = {key: value for key, value in labels.items() if key != NAME_LABEL}
    return {"metadata": {"labels": {**own, **reach}}, "spec": pod}


def _ray_submitter(labels: Mapping[str, str], settings: KubernetesConfig) -> K8sObject:
    """The submitter's pod; KubeRay sets its command."""
    container = RunContainer(
        name="ray-job-submitter",
        image=settings.images.train,
        resources=settings.ray.head.model_copy(
            update={"cpu_request": "100m", "memory_request": "256Mi"}
        ),
    )
    pod = bare_pod(container, settings, account=STEP_ACCOUNT)
    return {"metadata": {"labels": {**labels, **may_reach("ray")}}, "spec": pod}

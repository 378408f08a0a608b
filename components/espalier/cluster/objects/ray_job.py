"""Training as a KubeRay RayJob, on one or several nodes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from espalier.cluster.objects.launched import LaunchedKind, LaunchedStatus, LaunchOrder
from espalier.cluster.objects.names import (
    NAME_LABEL,
    QUEUE_LABEL,
    STAGE_LABEL,
    K8sObject,
    episode_reach,
    may_reach,
    object_labels,
    run_object_name,
)
from espalier.cluster.objects.pods import (
    STEP_ACCOUNT,
    TRAINER_ACCOUNT,
    RunContainer,
    bare_pod,
    run_pod,
)
from espalier.config import KubernetesConfig

_LABEL = "espalier-ray"
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Turns off Ray's usage reports to its developers."""
_ENDED = frozenset({"Complete", "Failed", "ValidationFailed"})
"""Values of jobDeploymentStatus after the job's end."""


def ray_job(order: LaunchOrder) -> K8sObject:
    """A RayJob: a head, `kubernetes.nodes` worker nodes, and a submitter.

    The command is the driver, the first training process; Ray places it on a worker node. Each
    training process takes one GPU. Without GPUs it takes one of Ray's CPU slots, of which a node
    has one per process, not per core.

    Ray's servers require a token, which KubeRay makes for each cluster and gives to its pods.

    Field names are those of ray.io/v1 (KubeRay 1.5.1, ray-operator/apis/ray/v1/rayjob_types.go).
    Kueue admits the whole job where the profile names a queue; it requires
    `shutdownAfterJobFinishes`, and sets `suspend` itself.

    Args:
        order: command and run.

    Raises:
        ManifestError: `run_id` cannot be part of a name.
    """
    settings = order.settings
    labels = object_labels(_LABEL, "training", order.run_id, settings.labels)
    labels |= {STAGE_LABEL: order.stage}
    environment = {**order.environment, **_QUIET}
    queue = {QUEUE_LABEL: settings.queue} if settings.queue else {}
    return {
        "apiVersion": RAY_JOB.api_version,
        "kind": RAY_JOB.kind,
        "metadata": {
            "name": run_object_name(order.run_id, f"{order.stage}-ray"),
            "namespace": settings.pipeline_namespace,
            "labels": labels | queue,
            "ownerReferences": [order.owner.reference()],
        },
        "spec": {
            "entrypoint": shlex.join(order.command),
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


def ray_job_status(job: K8sObject) -> LaunchedStatus:
    """Status of a RayJob: jobDeploymentStatus of the cluster, and jobStatus of its driver."""
    status = job.get("status") or {}
    deployment = str(status.get("jobDeploymentStatus") or "")
    driver = str(status.get("jobStatus") or "")
    return LaunchedStatus(
        state=f"{deployment or 'New'} {driver}".rstrip(),
        has_ended=deployment in _ENDED,
        has_succeeded=(deployment, driver) == ("Complete", "SUCCEEDED"),
        message=str(status.get("message") or status.get("reason") or ""),
    )


def _ray_head(
    labels: Mapping[str, str], settings: KubernetesConfig, environment: Mapping[str, str]
) -> K8sObject:
    container = RunContainer(
        name="ray-head",
        image=settings.images.train,
        resources=settings.ray.head,
        environment=environment,
    )
    # no slots on the head, because Ray's own servers need its CPU
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
    # a fixed size, because training cannot change its number of ranks
    workers = settings.nodes
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
    # without NAME_LABEL, because KubeRay sets it itself and selects the head by it
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


RAY_JOB = LaunchedKind(
    trainer="rayjob",
    api_version="ray.io/v1",
    kind="RayJob",
    plural="rayjobs",
    label=_LABEL,
    operator="KubeRay's operator",
    # the other stages run in one process
    stages=frozenset({"train"}),
    manifest=ray_job,
    status=ray_job_status,
)
"""RayJobs; KubeRay deletes the cluster of a finished job after `kubernetes.ray.ttl_s`."""

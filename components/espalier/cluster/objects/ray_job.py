"""Training on several nodes: a KubeRay RayJob, whose cluster lives as long as the training."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from espalier.cluster.objects.job import RAY_STAGE, episode_reach
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
    STEP_ACCOUNT,
    TRAINER_ACCOUNT,
    RunContainer,
    bare_pod,
    run_pod,
)
from espalier.config import KubernetesConfig

NAME = "espalier-ray"
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Ray would tell its makers about the cluster."""


def training_ray_job(
    command: Sequence[str],
    *,
    run_id: str,
    owner: Owner,
    settings: KubernetesConfig,
    environment: Mapping[str, str],
) -> K8sObject:
    """A RayJob: a head, `kubernetes.ray.workers` nodes that train, and a submitter.

    A process of training takes a GPU, and on nodes without GPUs a CPU, of which Ray is then told
    that a node has one: places are counted, and cores are the process's own affair.

    Field names are those of ray.io/v1 (KubeRay 1.4, ray-operator/apis/ray/v1/rayjob_types.go).
    Kueue admits it as a whole when the profile names a queue; it asks for
    `shutdownAfterJobFinishes`, and sets `suspend` itself.

    Args:
        command: the driver, the first process of training; Ray gives it a place on a node.
        run_id: names the RayJob.
        owner: the Job that launched it: deleting that, or its expiry, deletes the Ray cluster.
        settings: `kubernetes` of the profile, with `ray.workers` above 0.
        environment: of every Ray process.

    Raises:
        ManifestError: `run_id` cannot be part of a name.
    """
    name = run_object_name(run_id, f"{RAY_STAGE}-ray")
    labels = object_labels(NAME, "training", run_id, settings.labels)
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
            "submitterPodTemplate": _submitter(labels, settings),
            "rayClusterSpec": {
                "rayVersion": settings.ray.version,
                "headGroupSpec": _head(labels, settings, environment),
                "workerGroupSpecs": [_workers(labels, settings, environment)],
            },
        },
    }


def _head(
    labels: Mapping[str, str], settings: KubernetesConfig, environment: Mapping[str, str]
) -> K8sObject:
    container = RunContainer(
        name="ray-head",
        image=settings.images.train,
        resources=settings.ray.head,
        environment=environment,
    )
    # no CPU of the head is offered: Ray's own servers have it to themselves
    start = {"dashboard-host": "0.0.0.0", "num-cpus": "0"}
    return {"rayStartParams": start, "template": _template(container, labels, settings)}


def _workers(
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
    # a fixed size: training has as many ranks as it started with
    workers = settings.ray.workers
    return {
        "groupName": kind,
        "replicas": workers,
        "minReplicas": workers,
        "maxReplicas": workers,
        "rayStartParams": {f"num-{kind}s": str(settings.processes_on_ray_node)},
        "template": _template(container, labels, settings),
    }


def _template(
    container: RunContainer, labels: Mapping[str, str], settings: KubernetesConfig
) -> K8sObject:
    reach = episode_reach() | may_reach("ray")
    pod = run_pod(container, settings, account=TRAINER_ACCOUNT)
    # KubeRay finds the head by the name that it gives to its pods itself
    own = {key: value for key, value in labels.items() if key != NAME_LABEL}
    return {"metadata": {"labels": {**own, **reach}}, "spec": pod}


def _submitter(labels: Mapping[str, str], settings: KubernetesConfig) -> K8sObject:
    """KubeRay fills in the command that submits; what it would leave open is closed here."""
    container = RunContainer(
        name="ray-job-submitter",
        image=settings.images.train,
        resources=settings.ray.head.model_copy(
            update={"cpu_request": "100m", "memory_request": "256Mi"}
        ),
    )
    pod = bare_pod(container, settings, account=STEP_ACCOUNT)
    return {"metadata": {"labels": {**labels, **may_reach("ray")}}, "spec": pod}

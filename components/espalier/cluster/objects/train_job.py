"""A stage as a TrainJob of Kubeflow Trainer, on a ClusterTrainingRuntime of `k8s/trainer`.

The runtime holds what is the same for every run: account, security, network labels, retries. The
TrainJob holds the rest. Trainer 2.3 makes a JobSet from the two, with one Job of one pod, and lets
a TrainJob set its container's image, command, environment and resources, and patch labels, volumes
and node selection.

`train` may have several nodes, whose pods run the same command (`espalier.training.nodes`). It is
not torchrun, which starts all processes alike: here the first one alone judges and writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espalier.cluster.objects.launched import LaunchedKind, LaunchedStatus, LaunchOrder
from espalier.cluster.objects.names import (
    QUEUE_LABEL,
    STAGE_LABEL,
    K8sObject,
    object_labels,
    run_object_name,
)
from espalier.cluster.objects.pods import (
    CACHE_MOUNT,
    ENDPOINT_KEYS,
    RunContainer,
    environment_entries,
    own_labels,
    placement_fields,
    resource_requirements,
    run_volumes,
    s3_credentials,
)
from espalier.config import KubernetesConfig

_LABEL = "espalier-training"
RUNTIMES = {
    "continue_pretraining": "espalier-pretraining",
    "warm_start": "espalier-sft",
    "train": "espalier-grpo",
}
"""Stage -> name of its ClusterTrainingRuntime."""
_NAMES = {"continue_pretraining": "pretrain", "warm_start": "warm", "train": "train"}
"""Stage -> end of the TrainJob's name. A pod's name has 63 characters, of which 15 are -node-0-0-
and five random ones, and up to 36 are the run's id."""
_JOB, _CONTAINER = "node", "node"
"""Names that Trainer expects (pkg/constants/constants.go)."""
_PATCHED_BY = "espalier.dev/launcher"


def train_job(order: LaunchOrder) -> K8sObject:
    """A TrainJob; only `train` may have several nodes.

    Field names are those of trainer.kubeflow.org/v1alpha1 (Kubeflow Trainer 2.3.0,
    pkg/apis/trainer/v1alpha1/trainjob_types.go). Kueue admits the whole job where the profile names
    a queue, and sets `suspend` itself.

    Args:
        order: command and run.

    Raises:
        ManifestError: `run_id` cannot be part of a name.
    """
    settings = order.settings
    labels = object_labels(_LABEL, "training", order.run_id, settings.labels)
    labels |= {STAGE_LABEL: order.stage}
    queue = {QUEUE_LABEL: settings.queue} if settings.queue else {}
    container = _container(order)
    nodes = settings.pods_of(order.stage)
    return {
        "apiVersion": TRAIN_JOB.api_version,
        "kind": TRAIN_JOB.kind,
        "metadata": {
            # a TrainJob's name must begin with a letter; a run's id may begin with a digit
            "name": f"tj-{run_object_name(order.run_id, _NAMES[order.stage])}",
            "namespace": settings.pipeline_namespace,
            "labels": labels | queue,
            "ownerReferences": [order.owner.reference()],
        },
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": RUNTIMES[order.stage],
            },
            "activeDeadlineSeconds": settings.deadline_s,
            "trainer": {
                "image": container.image,
                "command": list(container.command),
                "env": _environment(order),
                "numNodes": nodes,
                "numProcPerNode": order.processes // nodes,
                "resourcesPerNode": resource_requirements(
                    container.resources,
                    {settings.gpus.resource: str(container.gpus)} if container.gpus else None,
                ),
            },
            "runtimePatches": [_patch(container, labels, settings)],
        },
    }


def train_job_status(job: K8sObject) -> LaunchedStatus:
    """Status of a TrainJob from its conditions, with the progress that the stage reports.

    Trainer removes the condition Failed from a TrainJob that continues, and sets Suspended to false
    on one that was resumed.
    """
    status = job.get("status") or {}
    conditions = status.get("conditions") or ()
    states = {entry["type"]: entry for entry in conditions if entry["status"] == "True"}
    for state in ("Complete", "Failed", "Suspended"):
        if state in states:
            return LaunchedStatus(
                state=state,
                has_ended=state != "Suspended",
                has_succeeded=state == "Complete",
                message=str(states[state].get("message") or "") if state == "Failed" else "",
            )
    is_active = any(entry.get("active") for entry in status.get("jobsStatus") or ())
    return LaunchedStatus(
        state="Running" if is_active else "New",
        has_ended=False,
        has_succeeded=False,
        message=_progress(status.get("trainerStatus") or {}),
    )


def _progress(trainer_status: Mapping[str, Any]) -> str:
    """Progress from the stage; empty where Trainer's feature gate TrainJobStatus is off."""
    if "progressPercentage" not in trainer_status:
        return ""
    return f"{trainer_status['progressPercentage']} %"


def _container(order: LaunchOrder) -> RunContainer:
    gpus = order.settings.gpus
    images = order.settings.images
    return RunContainer(
        name=_CONTAINER,
        image=images.train if gpus.count else images.cpu,
        resources=gpus.resources if gpus.count else order.settings.resources,
        command=order.command,
        environment=order.environment,
        gpus=gpus.count,
    )


def _environment(order: LaunchOrder) -> list[K8sObject]:
    """Entries of `env`, set here because patches cannot set them; `envFrom` is not allowed."""
    settings = order.settings
    variables = dict(order.environment)
    if settings.cache_claim is not None:
        variables["XDG_CACHE_HOME"] = CACHE_MOUNT
    addresses = [
        {
            "name": key,
            "valueFrom": {
                "configMapKeyRef": {"name": settings.endpoints, "key": key, "optional": True}
            },
        }
        for key in ENDPOINT_KEYS
        if key not in variables
    ]
    return [
        *environment_entries(variables),
        *addresses,
        *s3_credentials(settings),
        *own_labels(),
    ]


def _patch(
    container: RunContainer, labels: Mapping[str, str], settings: KubernetesConfig
) -> K8sObject:
    volumes = run_volumes(settings, container.resources, gpus=container.gpus)
    if settings.workspace_claim is not None:
        # renamed: patching the runtime's volume of that name would leave it with two sources
        _rename(volumes.volumes, volumes.mounts, "workspace", "workspace-claim")
    pod = {
        "metadata": {"labels": dict(labels)},
        "spec": {
            **placement_fields(container, settings),
            "containers": [{"name": _CONTAINER, "volumeMounts": volumes.mounts}],
            "volumes": volumes.volumes,
        },
    }
    replicated = {"name": _JOB, "template": {"spec": {"template": pod}}}
    return {
        "manager": _PATCHED_BY,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
    }


def _rename(volumes: list[K8sObject], mounts: list[K8sObject], name: str, other: str) -> None:
    for entry in (*volumes, *mounts):
        if entry["name"] == name:
            entry["name"] = other


TRAIN_JOB = LaunchedKind(
    trainer="trainjob",
    api_version="trainer.kubeflow.org/v1alpha1",
    kind="TrainJob",
    plural="trainjobs",
    label=_LABEL,
    operator="Kubeflow Trainer",
    stages=frozenset(RUNTIMES),
    manifest=train_job,
    status=train_job_status,
)
"""TrainJobs; a finished one keeps its pods, and their logs, until its owner is deleted."""

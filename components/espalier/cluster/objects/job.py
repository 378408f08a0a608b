"""A stage as a Kubernetes Job: what Kubeflow would run as a step, without Kubeflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from espalier.chain import CHAIN
from espalier.cluster.objects.names import (
    QUEUE_LABEL,
    STAGE_LABEL,
    K8sObject,
    may_reach,
    object_labels,
    run_object_name,
)
from espalier.cluster.objects.pods import (
    LAUNCHER_ACCOUNT,
    STEP_ACCOUNT,
    TRAINER_ACCOUNT,
    RunContainer,
    run_pod,
)
from espalier.config import KubernetesConfig, PodResources

CONTAINER = "step"

RAY_STAGE = "train"
"""The stage that a RayJob can take over; its own pod then is a CPU step that watches."""

# resolve_profile is a step of the pipeline and no stage: it is in neither
_COMPUTING = frozenset(stage.name for stage in CHAIN if stage.uses_policy)
_PLAYING = frozenset(stage.name for stage in CHAIN if stage.plays_episodes)

RUN_ID_VARIABLE = "ESPALIER_RUN_ID"
OWNER_VARIABLES = tuple(f"ESPALIER_OWNER_{part}" for part in ("API_VERSION", "KIND", "NAME", "UID"))
"""What a step that launches a RayJob is told: the run, and the object that is to own the RayJob."""

_REFUSED = (1, 2)
"""Exit codes of Python and of the command line when a stage refused what it was given."""


def stage_job(
    stage: str,
    command: Sequence[str],
    *,
    run_id: str,
    settings: KubernetesConfig,
    environment: Mapping[str, str],
) -> K8sObject:
    """The Job of one stage; its pod is made again when it dies, not when the stage refuses.

    A pod that was evicted, preempted or drained does not count as a try. An exit code of 1 or 2 is
    the stage's own refusal and ends the Job at once: the same input would be refused again.

    Args:
        stage: name of the stage.
        command: what the container runs, from `orchestration.step_command.container_command`.
        run_id: names the Job; one Job a stage and run.
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
            # two pods would write the same artifact: the second waits until the first is gone
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _failure_rules()},
            "template": {
                "metadata": {"labels": labels | stage_reach(stage, settings)},
                "spec": pod,
            },
        },
    }


def episode_reach() -> dict[str, str]:
    """What the network policies let a pod reach whose agent acts."""
    return may_reach("s3", "mlflow", "kubernetes", "sandboxes", "rollout")


def launches_ray(stage: str, settings: KubernetesConfig) -> bool:
    """Whether the stage's own pod only starts a RayJob, and watches it."""
    return stage == RAY_STAGE and settings.ray.workers > 0


def stage_reach(stage: str, settings: KubernetesConfig) -> dict[str, str]:
    """What the network policies let the pod of `stage` reach, as labels."""
    if launches_ray(stage, settings):
        return may_reach("s3", "mlflow", "kubernetes")
    return episode_reach() if stage in _PLAYING else may_reach("s3", "mlflow")


def stage_gpus(stage: str, settings: KubernetesConfig) -> int:
    """GPUs of the pod of `stage`."""
    computes = stage in _COMPUTING and not launches_ray(stage, settings)
    return settings.gpus.count if computes else 0


def stage_image(stage: str, settings: KubernetesConfig) -> str:
    """Image of the pod of `stage`: the large one where there is a GPU."""
    return settings.images.train if stage_gpus(stage, settings) else settings.images.cpu


def stage_resources(stage: str, settings: KubernetesConfig) -> PodResources:
    """What the pod of `stage` asks for, GPUs apart."""
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
    """Labels that the Job controller puts on its pods say which Job a pod is of."""
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
    """In order: the first that matches decides; what matches none counts against the retries."""
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

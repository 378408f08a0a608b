"""A stage as a Kubernetes Job, without Kubeflow: its pod runs the stage or launches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from espalier.chain import CHAIN
from espalier.cluster.objects.kinds import launched_kind
from espalier.cluster.objects.names import (
    QUEUE_LABEL,
    STAGE_LABEL,
    K8sObject,
    episode_reach,
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

# resolve_profile, a step of the pipeline but no stage, is in neither set
_USES_POLICY = frozenset(stage.name for stage in CHAIN if stage.uses_policy)
_PLAYS_EPISODES = frozenset(stage.name for stage in CHAIN if stage.plays_episodes)

RUN_ID_VARIABLE = "ESPALIER_RUN_ID"
OWNER_VARIABLES = tuple(f"ESPALIER_OWNER_{part}" for part in ("API_VERSION", "KIND", "NAME", "UID"))
"""Variables of a step that launches an object: run id, and the object's owner. Kubeflow's steps
name their Pod, whose controller becomes the owner (`cluster.launching`)."""

_KEEP_S = 24 * 3600
"""Seconds that a finished Job stays, for its log."""
_REFUSED = (1, 2)
"""Exit codes of an uncaught Python error and of an invalid command line."""


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
        command: command of the container, from `orchestration.step_runner.container_command`.
        run_id: part of the Job's name; one Job per stage and run.
        settings: `kubernetes` of the profile.
        environment: variables of the step, such as its tracked run.

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
    if launches(stage, settings):
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
            "ttlSecondsAfterFinished": _KEEP_S,
            # a second pod may start only after the first is gone: both write the same artifact
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _failure_rules()},
            "template": {
                "metadata": {"labels": labels | stage_reach(stage, settings)},
                "spec": pod,
            },
        },
    }


def launches(stage: str, settings: KubernetesConfig) -> bool:
    """Whether the stage's pod launches and watches an object that runs the stage."""
    return launched_kind(stage, settings) is not None


def stage_reach(stage: str, settings: KubernetesConfig) -> dict[str, str]:
    """Labels that open the network policies for the stage's pod."""
    if launches(stage, settings):
        return may_reach("s3", "mlflow", "kubernetes")
    return episode_reach() if stage in _PLAYS_EPISODES else may_reach("s3", "mlflow")


def gives_weights(stage: str, settings: KubernetesConfig) -> bool:
    """Whether the stage's own pod gives policies to vLLM servers, where a run has some."""
    is_one = stage == "prepare_policy" or stage in _PLAYS_EPISODES
    return is_one and not launches(stage, settings)


def stage_gpus(stage: str, settings: KubernetesConfig) -> int:
    """Number of GPUs of the pod of `stage`."""
    computes = stage in _USES_POLICY and not launches(stage, settings)
    return settings.gpus.count if computes else 0


def stage_image(stage: str, settings: KubernetesConfig) -> str:
    """Image of the stage's pod: the training image if it has GPUs."""
    return settings.images.train if stage_gpus(stage, settings) else settings.images.cpu


def stage_resources(stage: str, settings: KubernetesConfig) -> PodResources:
    """CPU, memory and disk of the stage's pod."""
    return settings.gpus.resources if stage_gpus(stage, settings) else settings.resources


def _account(stage: str, settings: KubernetesConfig) -> str:
    if launches(stage, settings):
        return LAUNCHER_ACCOUNT
    return TRAINER_ACCOUNT if stage in _PLAYS_EPISODES else STEP_ACCOUNT


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
    """Variables of RUN_ID_VARIABLE and OWNER_VARIABLES.

    The owner is the Job; its name and UID come from labels that the Job controller sets on pods.
    """
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
    """Rules of which the first match decides; failures without a match count as attempts."""
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

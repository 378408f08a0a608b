"""A step that starts a RayJob, watches it, and takes it away when it is itself sent away.

It needs no GPU. The driver is the same `espalier step` command, on the first node with GPUs: it
fetches, trains and publishes; this process looks how it is doing. A job that has ended is left to
KubeRay, which shuts its cluster down after `kubernetes.ray.ttl_s`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from espalier.config import KubernetesConfig
from espalier.manifests.job import OWNER_VARIABLES, RUN_ID_VARIABLE
from espalier.manifests.objects import Owner
from espalier.manifests.ray_job import training_ray_job
from espalier.orchestration.ending import ignore_signals, on_signals
from espalier.orchestration.ray_jobs import RayJobs, RayJobStatus
from espalier.records import ClusterError
from espalier.training.places import RAY_DRIVER_VARIABLE

_POLL_S = 5.0
_HANDED_ON = ("ESPALIER_PARENT_RUN", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME")
"""What a pod is told apart from the endpoints: which tracked run it belongs to."""


class SentAway(Exception):
    """A signal asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def run_on_ray(
    command: Sequence[str],
    settings: KubernetesConfig,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> RayJobStatus:
    """Run `command` as the driver of a RayJob, and return how it ended.

    Args:
        command: the driver.
        settings: `kubernetes` of the profile.
        environment: of this process: run id and owner (`manifests.job`), tracked run, KUBECONFIG.
        say: takes a line whenever the job's state changes.

    Raises:
        ClusterError: the variables are not set, the API server refuses or is away for long, or
            somebody has deleted the job. The job is deleted then.
        SentAway: a signal came; the job is deleted.
    """
    handed_on = {name: environment[name] for name in _HANDED_ON if name in environment}
    manifest = training_ray_job(
        command,
        run_id=_variable(environment, RUN_ID_VARIABLE),
        owner=Owner(*(_variable(environment, name) for name in OWNER_VARIABLES)),
        settings=settings,
        environment={**handed_on, RAY_DRIVER_VARIABLE: "1"},
    )
    jobs = RayJobs(settings.pipeline_namespace, environment)
    name = manifest["metadata"]["name"]
    with on_signals(_sent_away):
        try:
            jobs.create(manifest)
            return _watched(jobs, name, say)
        except (ClusterError, SentAway) as reason:
            say(f"deletes RayJob {name}: {reason}")
            jobs.delete(manifest)
            raise


def _watched(jobs: RayJobs, name: str, say: Callable[[str], None]) -> RayJobStatus:
    said = ""
    while True:
        status = jobs.status(name)
        if status.line() != said:
            said = status.line()
            say(f"RayJob {name}: {said}")
        if status.has_ended:
            return status
        time.sleep(_POLL_S)


def _variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise ClusterError(
            f"{name} is not set: kubernetes.ray.workers needs a step that runs as a Job of ours "
            "(manifests.job), which says who owns the RayJob; or set it to 0"
        )
    return value


def _sent_away(number: int) -> NoReturn:
    ignore_signals()
    raise SentAway(number)

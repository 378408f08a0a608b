"""RayJobs: made once, read while the API server restarts, deleted; a step as the driver of one.

That step needs no GPU. The driver is the same `espalier step` command, on the first node with GPUs:
it fetches, trains and publishes; the step watches, and deletes the job when it is itself ended. A
job that has ended is left to KubeRay, which shuts its cluster down after `kubernetes.ray.ttl_s`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from espalier.cluster.ending import ignore_signals, on_signals
from espalier.cluster.kubernetes_api import KubernetesApi, Patience, cluster_configuration
from espalier.cluster.kubernetes_requests import delete, object_path, owner_uid
from espalier.cluster.objects.job import OWNER_VARIABLES, RUN_ID_VARIABLE
from espalier.cluster.objects.names import K8sObject, Owner
from espalier.cluster.objects.ray_job import training_ray_job
from espalier.config import KubernetesConfig
from espalier.determinism import RAY_DRIVER_VARIABLE
from espalier.records import ClusterError

PATIENCE = Patience(attempts=None, total_s=600.0, first_pause_s=0.5, longest_pause_s=15.0)
"""An upgrade of the API server takes minutes, and training goes on meanwhile."""
_POLL_S = 5.0
_HANDED_ON = ("ESPALIER_PARENT_RUN", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME")
"""What a pod is told apart from the endpoints: which tracked run it belongs to."""
_ENDED = frozenset({"Complete", "Failed", "ValidationFailed"})


class RayJobStatus(NamedTuple):
    """What KubeRay says of a RayJob (status of ray.io/v1)."""

    deployment: str
    """jobDeploymentStatus: Initializing, Running, Suspended, Retrying, Complete, Failed, ..."""
    job: str
    """jobStatus: PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED."""
    message: str

    @property
    def has_ended(self) -> bool:
        """Whether KubeRay has nothing left to do but shut down."""
        return self.deployment in _ENDED

    @property
    def has_succeeded(self) -> bool:
        """Whether the driver ended well."""
        return self.deployment == "Complete" and self.job == "SUCCEEDED"

    def line(self) -> str:
        """For a log."""
        said = f": {self.message}" if self.message else ""
        return f"{self.deployment or 'New'} {self.job}".rstrip() + said


class RayJobs:
    """The RayJobs of one namespace."""

    def __init__(self, namespace: str, environment: Mapping[str, str]) -> None:
        """Connect to the cluster of KUBECONFIG, or to the one that this pod runs in.

        Raises:
            ClusterError: there is neither.
        """
        self._namespace = namespace
        self._folder = object_path("ray.io/v1", "rayjobs", namespace)
        self._api = KubernetesApi(cluster_configuration(environment.get("KUBECONFIG")), PATIENCE)

    def create(self, manifest: K8sObject) -> None:
        """Make the RayJob, or go on with the one that an earlier pod of the same owner made.

        Raises:
            ClusterError: another owner has one of that name; refused; the server is away.
        """
        self._api.create_or_adopt(self._folder, manifest, "RayJob")

    def status(self, name: str) -> RayJobStatus:
        """How it is doing.

        Raises:
            ClusterError: somebody has deleted it; refused; the server is away.
        """
        found = self._find(name)
        if found is None:
            raise ClusterError(f"RayJob {self._namespace}/{name} is gone: somebody has deleted it")
        status = found.get("status") or {}
        return RayJobStatus(
            deployment=str(status.get("jobDeploymentStatus") or ""),
            job=str(status.get("jobStatus") or ""),
            message=str(status.get("message") or status.get("reason") or ""),
        )

    def delete(self, manifest: K8sObject) -> None:
        """Delete it with everything that it owns; one that is gone, or another owner's, is none.

        Raises:
            ClusterError: refused; the server is away.
        """
        name = manifest["metadata"]["name"]
        present = self._find(name)
        if present is None or owner_uid(present) != owner_uid(manifest):
            return
        uid = present["metadata"]["uid"]
        self._api.discard(delete(f"{self._folder}/{name}", f"delete RayJob {name}", uid=uid))

    def _find(self, name: str) -> K8sObject | None:
        return self._api.find(f"{self._folder}/{name}", f"read RayJob {name}")


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
        environment: of this process: run id and owner (`objects.job`), tracked run, KUBECONFIG.
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
            "(`espalier.cluster.objects.job`), which says who owns the RayJob; or set it to 0"
        )
    return value


def _sent_away(number: int) -> NoReturn:
    ignore_signals()
    raise SentAway(number)

"""RayJobs: create, watch (also while the API server restarts), delete; a step that launches one.

That step needs no GPU. The RayJob's driver is the same `espalier step` command on a node with GPUs:
it fetches, trains and publishes, while the step watches it. A finished job is left to KubeRay,
which shuts its cluster down after `kubernetes.ray.ttl_s`.

A step that runs as a Job deletes its RayJob when it is terminated. Under Kubeflow, which gives a
step a fraction of a second, the RayJob belongs to the run's Workflow: the next attempt of the step
goes on watching it, and when the run has ended or was stopped, the collector (`ray_garbage`)
deletes it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, NoReturn

from espalier.cluster.kubernetes_api import (
    ApiRetries,
    KubernetesApi,
    cluster_configuration,
    delete,
    object_path,
    owner_uid,
)
from espalier.cluster.objects.job import OWNER_VARIABLES, RUN_ID_VARIABLE, training_ray_job
from espalier.cluster.objects.names import K8sObject, Owner
from espalier.config import KubernetesConfig
from espalier.determinism import RAY_DRIVER_VARIABLE
from espalier.records import ClusterError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_signals(act: Callable[[int], None]) -> Generator[None]:
    """Call `act` with the number of a SIGTERM or SIGINT, in the main thread.

    PID 1 of a container receives only signals that it handles: without a handler the kubelet would
    wait for the grace period and then kill the pod.
    """

    def called(number: int, _frame: FrameType | None) -> None:
        act(number)

    before = {number: signal.signal(number, called) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore further signals during clean-up, until `on_signals` restores the handlers."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


RETRIES = ApiRetries(attempts=None, total_s=600.0, first_pause_s=0.5, longest_pause_s=15.0)
"""An upgrade of the API server takes minutes, in which training continues."""
_POLL_S = 5.0
_PASSED_ON = (
    "ESPALIER_PARENT_RUN",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_NAME",
)
"""Variables that the Ray pods get besides the endpoints: the tracked run they belong to, and the
server that has it, which may be another one than that of the endpoints."""
ENDED_STATES = frozenset({"Complete", "Failed", "ValidationFailed"})
"""Values of jobDeploymentStatus."""
_GONE_WITHIN_S = 300.0
"""KubeRay stops the job and its cluster before it lets go of a RayJob that was deleted."""


class RayJobStatus(NamedTuple):
    """Status of a RayJob (ray.io/v1)."""

    deployment: str
    """jobDeploymentStatus: Initializing, Running, Suspended, Retrying, Complete, Failed, ..."""
    job: str
    """jobStatus: PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED."""
    message: str

    @property
    def has_ended(self) -> bool:
        """Whether it finished, failed or was invalid."""
        return self.deployment in ENDED_STATES

    @property
    def has_succeeded(self) -> bool:
        """Whether the driver succeeded."""
        return self.deployment == "Complete" and self.job == "SUCCEEDED"

    def line(self) -> str:
        """One line for a log."""
        detail = f": {self.message}" if self.message else ""
        return f"{self.deployment or 'New'} {self.job}".rstrip() + detail


class RayJobs:
    """The RayJobs of one namespace."""

    def __init__(self, namespace: str, environment: Mapping[str, str]) -> None:
        """Connect to the cluster of KUBECONFIG, or to that of this pod.

        Raises:
            ClusterError: there is neither.
        """
        self._namespace = namespace
        self._folder = object_path("ray.io/v1", "rayjobs", namespace)
        self._api = KubernetesApi(cluster_configuration(environment.get("KUBECONFIG")), RETRIES)

    def create(self, manifest: K8sObject) -> None:
        """Create the RayJob, or continue with the one of an earlier pod of the same owner.

        One that is being deleted is waited for.

        Raises:
            ClusterError: a job of this name has another owner, or is not deleted in five minutes;
                refused; the server is unreachable.
        """
        self._wait_for_name(manifest["metadata"]["name"])
        self._api.create_or_adopt(self._folder, manifest, "RayJob")

    def pod_controller(self, pod: Owner) -> Owner:
        """The controller of a pod, such as the Workflow of a run of Kubeflow.

        Raises:
            ClusterError: the pod is in another namespace, or has no controller; refused; the server
                is unreachable.
        """
        path = object_path("v1", "pods", self._namespace, pod.name)
        found = self._api.find(path, f"read Pod {self._namespace}/{pod.name}")
        if found is None or found["metadata"]["uid"] != pod.uid:
            raise ClusterError(
                f"this step's pod {pod.name} is not in kubernetes.pipeline_namespace="
                f"{self._namespace}, and a RayJob is owned in its own namespace alone; set the key "
                "to the namespace of Kubeflow's runs"
            )
        for reference in found["metadata"].get("ownerReferences") or ():
            if reference.get("controller"):
                named = (reference[key] for key in ("apiVersion", "kind", "name", "uid"))
                return Owner(*named)
        raise ClusterError(
            f"pod {pod.name} has no controller that could own a RayJob: launch it from a run of "
            "Kubeflow or from a Job of ours"
        )

    def delete_failed(self, manifest: K8sObject) -> None:
        """Delete a RayJob of the same name and owner if it failed.

        Raises:
            ClusterError: refused; the server is unreachable.
        """
        present = self._find(manifest["metadata"]["name"])
        if present is not None:
            status = _status_of(present)
            if status.has_ended and not status.has_succeeded:
                self.delete(manifest)

    def status(self, name: str) -> RayJobStatus:
        """Read the status.

        Raises:
            ClusterError: it was deleted; refused; the server is unreachable.
        """
        found = self._find(name)
        if found is None:
            raise ClusterError(f"RayJob {self._namespace}/{name} was deleted")
        return _status_of(found)

    def delete(self, manifest: K8sObject) -> None:
        """Delete it with everything that it owns, unless it is gone or has another owner.

        Raises:
            ClusterError: refused; the server is unreachable.
        """
        name = manifest["metadata"]["name"]
        present = self._find(name)
        if present is None or owner_uid(present) != owner_uid(manifest):
            return
        uid = present["metadata"]["uid"]
        self._api.discard(delete(f"{self._folder}/{name}", f"delete RayJob {name}", uid=uid))

    def _wait_for_name(self, name: str) -> None:
        deadline = time.monotonic() + _GONE_WITHIN_S
        while (present := self._find(name)) and "deletionTimestamp" in present["metadata"]:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"RayJob {self._namespace}/{name} of an earlier attempt was not deleted in "
                    f"{_GONE_WITHIN_S:g} s; see whether KubeRay's operator runs"
                )
            time.sleep(_POLL_S)

    def _find(self, name: str) -> K8sObject | None:
        return self._api.find(f"{self._folder}/{name}", f"read RayJob {name}")


def _status_of(job: K8sObject) -> RayJobStatus:
    status = job.get("status") or {}
    return RayJobStatus(
        deployment=str(status.get("jobDeploymentStatus") or ""),
        job=str(status.get("jobStatus") or ""),
        message=str(status.get("message") or status.get("reason") or ""),
    )


class StepTerminated(Exception):
    """This process received SIGTERM or SIGINT."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def run_on_ray(
    command: Sequence[str],
    settings: KubernetesConfig,
    environment: Mapping[str, str],
    log: Callable[[str], None],
) -> RayJobStatus:
    """Run `command` as the driver of a RayJob and return its final status.

    Args:
        command: the driver.
        settings: `kubernetes` of the profile.
        environment: of this process: run id and owner (`objects.job`), tracked run, KUBECONFIG.
        log: takes a line whenever the job's state changes.

    Raises:
        ClusterError: a variable is not set, the API server refuses or is unreachable for long, or
            the job was deleted by others. The job is deleted then.
        StepTerminated: a signal came; the job of a Job's step is deleted, that of a run of Kubeflow
            is left to the next attempt or to the collector.
    """
    named = Owner(*(_variable(environment, name) for name in OWNER_VARIABLES))
    run_id = _variable(environment, RUN_ID_VARIABLE)
    jobs = RayJobs(settings.pipeline_namespace, environment)
    is_kubeflow = named.kind == "Pod"
    passed_on = {name: environment[name] for name in _PASSED_ON if name in environment}
    if is_kubeflow:  # by which its stages find their common tracked run
        passed_on[RUN_ID_VARIABLE] = run_id
    manifest = training_ray_job(
        command,
        run_id=run_id,
        owner=jobs.pod_controller(named) if is_kubeflow else named,
        settings=settings,
        environment={**passed_on, RAY_DRIVER_VARIABLE: "1"},
    )
    name = manifest["metadata"]["name"]
    with on_signals(_terminated):
        try:
            if is_kubeflow:
                # a run that is retried has the same id: its failed job must not fail it again
                jobs.delete_failed(manifest)
            jobs.create(manifest)
            return _watched(jobs, name, log)
        except (ClusterError, StepTerminated) as reason:
            if is_kubeflow and isinstance(reason, StepTerminated):
                log(f"leaves RayJob {name} to the next attempt: {reason}")
            else:
                log(f"deletes RayJob {name}: {reason}")
                jobs.delete(manifest)
            raise


def _watched(jobs: RayJobs, name: str, log: Callable[[str], None]) -> RayJobStatus:
    logged = ""
    while True:
        status = jobs.status(name)
        if status.line() != logged:
            logged = status.line()
            log(f"RayJob {name}: {logged}")
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


def _terminated(number: int) -> NoReturn:
    ignore_signals()
    raise StepTerminated(number)

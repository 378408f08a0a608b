"""A step that launches its stage as an object of another kind: creates it, watches it, deletes it.

That step needs no GPU. The object's own pods run the same `espalier step` command where the GPUs
are: they fetch, train and publish, while the step watches, also while the API server restarts. What
kinds there are is said in `objects.kinds`.

A step that runs as a Job deletes its object when it is terminated. Under Kubeflow, which gives a
step a fraction of a second, the object belongs to the run's Workflow: the next attempt of the step
goes on watching it, and when the run has ended or was stopped, the collector (`launched_garbage`)
deletes it. An object that is suspended, as by Kueue for another one, is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from espalier.cluster.kubernetes_api import (
    ApiRetries,
    KubernetesApi,
    cluster_configuration,
    delete,
    object_path,
    owner_uid,
)
from espalier.cluster.objects.job import OWNER_VARIABLES, RUN_ID_VARIABLE
from espalier.cluster.objects.launched import LaunchedKind, LaunchedStatus, LaunchOrder
from espalier.cluster.objects.names import K8sObject, Owner
from espalier.cluster.signals import ignore_signals, on_signals
from espalier.config import KubernetesConfig
from espalier.determinism import TRAINER_VARIABLE
from espalier.records import ClusterError

RETRIES = ApiRetries(attempts=None, total_s=600.0, first_pause_s=0.5, longest_pause_s=15.0)
"""An upgrade of the API server takes minutes, in which training continues."""
_POLL_S = 5.0
_PASSED_ON = (
    "ESPALIER_PARENT_RUN",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_NAME",
)
"""Variables that the pods get besides the endpoints: the tracked run they belong to, and the server
that has it, which may be another one than that of the endpoints."""
_GONE_WITHIN_S = 300.0
"""KubeRay stops the job and its cluster before it lets go of a RayJob that was deleted."""


class LaunchedObjects:
    """The objects of one kind in one namespace."""

    def __init__(self, kind: LaunchedKind, namespace: str, environment: Mapping[str, str]) -> None:
        """Connect to the cluster of KUBECONFIG, or to that of this pod.

        Raises:
            ClusterError: there is neither.
        """
        self._kind = kind
        self._namespace = namespace
        self._folder = object_path(kind.api_version, kind.plural, namespace)
        self._api = KubernetesApi(cluster_configuration(environment.get("KUBECONFIG")), RETRIES)

    def create(self, manifest: K8sObject) -> None:
        """Create the object, or continue with that of an earlier pod of the same owner.

        One that is being deleted is waited for.

        Raises:
            ClusterError: an object of this name has another owner, or is not deleted in five
                minutes; refused; the server is unreachable.
        """
        self._wait_for_name(manifest["metadata"]["name"])
        self._api.create_or_adopt(self._folder, manifest, self._kind.kind)

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
                f"{self._namespace}, and a {self._kind.kind} is owned in its own namespace alone; "
                "set the key to the namespace of Kubeflow's runs"
            )
        for reference in found["metadata"].get("ownerReferences") or ():
            if reference.get("controller"):
                named = (reference[key] for key in ("apiVersion", "kind", "name", "uid"))
                return Owner(*named)
        raise ClusterError(
            f"pod {pod.name} has no controller that could own a {self._kind.kind}: launch it from "
            "a run of Kubeflow or from a Job of ours"
        )

    def delete_failed(self, manifest: K8sObject) -> None:
        """Delete an object of the same name and owner if it failed.

        Raises:
            ClusterError: refused; the server is unreachable.
        """
        present = self._find(manifest["metadata"]["name"])
        if present is not None:
            status = self._kind.status(present)
            if status.has_ended and not status.has_succeeded:
                self.delete(manifest)

    def status(self, name: str) -> LaunchedStatus:
        """Read the status.

        Raises:
            ClusterError: it was deleted; refused; the server is unreachable.
        """
        found = self._find(name)
        if found is None:
            raise ClusterError(f"{self._kind.kind} {self._namespace}/{name} was deleted")
        return self._kind.status(found)

    def delete(self, manifest: K8sObject) -> None:
        """Delete it with everything that it owns, unless it is gone or has another owner.

        Raises:
            ClusterError: refused; the server is unreachable.
        """
        name = manifest["metadata"]["name"]
        present = self._find(name)
        if present is None or owner_uid(present) != owner_uid(manifest):
            return
        uid, what = present["metadata"]["uid"], f"delete {self._kind.kind} {name}"
        self._api.discard(delete(f"{self._folder}/{name}", what, uid=uid))

    def _wait_for_name(self, name: str) -> None:
        deadline = time.monotonic() + _GONE_WITHIN_S
        while (present := self._find(name)) and "deletionTimestamp" in present["metadata"]:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{self._kind.kind} {self._namespace}/{name} of an earlier attempt was not "
                    f"deleted in {_GONE_WITHIN_S:g} s; see whether {self._kind.operator} runs"
                )
            time.sleep(_POLL_S)

    def _find(self, name: str) -> K8sObject | None:
        return self._api.find(f"{self._folder}/{name}", f"read {self._kind.kind} {name}")


class StepTerminated(Exception):
    """This process received SIGTERM or SIGINT."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def launch(  # noqa: PLR0913 (who launches, what, and where)
    kind: LaunchedKind,
    stage: str,
    command: Sequence[str],
    *,
    processes: int,
    settings: KubernetesConfig,
    environment: Mapping[str, str],
    log: Callable[[str], None],
) -> LaunchedStatus:
    """Run `command` as an object of `kind` and return its final status.

    Args:
        kind: of the object.
        stage: that the command runs.
        command: of the stage's first process.
        processes: of the stage that train together.
        settings: `kubernetes` of the profile.
        environment: of this process: run id and owner (`objects.job`), tracked run, KUBECONFIG.
        log: takes a line whenever the object's state changes.

    Raises:
        ClusterError: a variable is not set, the API server refuses or is unreachable for long, or
            the object was deleted by others. It is deleted then.
        StepTerminated: a signal came; the object of a Job's step is deleted, that of a run of
            Kubeflow is left to the next attempt or to the collector.
    """
    named = Owner(*(_variable(environment, name, kind) for name in OWNER_VARIABLES))
    run_id = _variable(environment, RUN_ID_VARIABLE, kind)
    objects = LaunchedObjects(kind, settings.pipeline_namespace, environment)
    is_kubeflow = named.kind == "Pod"
    passed_on = {name: environment[name] for name in _PASSED_ON if name in environment}
    if is_kubeflow:  # by which its stages find their common tracked run
        passed_on[RUN_ID_VARIABLE] = run_id
    manifest = kind.manifest(
        LaunchOrder(
            stage=stage,
            command=command,
            run_id=run_id,
            owner=objects.pod_controller(named) if is_kubeflow else named,
            settings=settings,
            environment={**passed_on, TRAINER_VARIABLE: kind.trainer},
            processes=processes,
        )
    )
    name = manifest["metadata"]["name"]
    with on_signals(_terminated):
        try:
            # a later attempt, or a retried run of Kubeflow, uses the same name: the object that
            # failed must not fail it again
            objects.delete_failed(manifest)
            objects.create(manifest)
            return _watched(objects, f"{kind.kind} {name}", name, log)
        except (ClusterError, StepTerminated) as reason:
            if is_kubeflow and isinstance(reason, StepTerminated):
                log(f"leaves {kind.kind} {name} to the next attempt: {reason}")
            else:
                log(f"deletes {kind.kind} {name}: {reason}")
                objects.delete(manifest)
            raise


def _watched(
    objects: LaunchedObjects, shown: str, name: str, log: Callable[[str], None]
) -> LaunchedStatus:
    logged = ""
    while True:
        status = objects.status(name)
        if status.line() != logged:
            logged = status.line()
            log(f"{shown}: {logged}")
        if status.has_ended:
            return status
        time.sleep(_POLL_S)


def _variable(environment: Mapping[str, str], name: str, kind: LaunchedKind) -> str:
    value = environment.get(name)
    if not value:
        raise ClusterError(
            f'{name} is not set: kubernetes.trainer = "{kind.trainer}" needs a step that runs as a '
            "Job of ours (`espalier.cluster.objects.job`), which says who owns the "
            f'{kind.kind}; or set it to "job"'
        )
    return value


def _terminated(number: int) -> NoReturn:
    ignore_signals()
    raise StepTerminated(number)

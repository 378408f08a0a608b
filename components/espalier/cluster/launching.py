"""Launches a stage as another object (RayJob, TrainJob): creates it, watches it, deletes it.

The launching step needs no GPU. The object's pods run the same `espalier step` command on the GPU
nodes: they fetch, train and publish, while the step watches, also through restarts of the API
server. `objects.kinds` lists the kinds of objects.

A step that runs as a Job deletes its object when it is terminated. Kubeflow gives a terminated step
only a fraction of a second, so there the object belongs to the run's Workflow: the next attempt of
the step continues to watch it, and after the run's end the collector (`launched_garbage`) deletes
it. The step keeps waiting for an object that Kueue has suspended.
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
"""Patience with the API server: its upgrade takes minutes, in which training continues."""
_POLL_S = 5.0
_PASSED_ON = (
    "ESPALIER_PARENT_RUN",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_NAME",
)
"""Variables that are passed on to the pods: the tracked run, and its server, which may differ from
that of the endpoints."""
_GONE_WITHIN_S = 300.0
"""Seconds to wait for a deleted object: KubeRay first stops the RayJob's job and cluster."""


class LaunchedObjects:
    """Client for the objects of one kind in one namespace."""

    def __init__(self, kind: LaunchedKind, namespace: str, environment: Mapping[str, str]) -> None:
        """Connect to the cluster of KUBECONFIG, or to that of this pod.

        Raises:
            ClusterError: neither is configured.
        """
        self._kind = kind
        self._namespace = namespace
        self._folder = object_path(kind.api_version, kind.plural, namespace)
        self._api = KubernetesApi(cluster_configuration(environment.get("KUBECONFIG")), RETRIES)

    def create(self, manifest: K8sObject) -> None:
        """Create the object, or keep the one that an earlier pod of the same owner created.

        Waits first for an object of this name that is being deleted.

        Raises:
            ClusterError: an object of this name has another owner, or is not deleted in five
                minutes; the server refuses or is unreachable.
        """
        self._wait_for_name(manifest["metadata"]["name"])
        self._api.create_or_adopt(self._folder, manifest, self._kind.kind)

    def pod_controller(self, pod: Owner) -> Owner:
        """The controller of a pod, such as the Workflow of a Kubeflow run.

        Raises:
            ClusterError: the pod is in another namespace, or has no controller; the server refuses
                or is unreachable.
        """
        path = object_path("v1", "pods", self._namespace, pod.name)
        found = self._api.find(path, f"read Pod {self._namespace}/{pod.name}")
        if found is None or found["metadata"]["uid"] != pod.uid:
            raise ClusterError(
                f"this step's pod {pod.name} is not in kubernetes.pipeline_namespace="
                f"{self._namespace}, and the owner of a {self._kind.kind} must be in the same "
                "namespace; set the key to the namespace of Kubeflow's runs"
            )
        for reference in found["metadata"].get("ownerReferences") or ():
            if reference.get("controller"):
                fields = (reference[key] for key in ("apiVersion", "kind", "name", "uid"))
                return Owner(*fields)
        raise ClusterError(
            f"pod {pod.name} has no controller that could own a {self._kind.kind}: launch it from "
            "a Kubeflow run or from a Job that espalier created"
        )

    def delete_failed(self, manifest: K8sObject) -> None:
        """Delete the object with the same name and owner if it has failed.

        Raises:
            ClusterError: the server refuses or is unreachable.
        """
        present = self._find(manifest["metadata"]["name"])
        if present is not None:
            status = self._kind.status(present)
            if status.has_ended and not status.has_succeeded:
                self.delete(manifest)

    def status(self, name: str) -> LaunchedStatus:
        """Read the status.

        Raises:
            ClusterError: the object was deleted; the server refuses or is unreachable.
        """
        found = self._find(name)
        if found is None:
            raise ClusterError(f"{self._kind.kind} {self._namespace}/{name} was deleted")
        return self._kind.status(found)

    def delete(self, manifest: K8sObject) -> None:
        """Delete the object with everything that it owns, unless it has another owner.

        Raises:
            ClusterError: the server refuses or is unreachable.
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
                    f"deleted in {_GONE_WITHIN_S:g} s; check that {self._kind.operator} runs"
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
        kind: kind of the object.
        stage: name of the stage.
        command: command of the stage's first process.
        processes: number of processes of the stage that train together.
        settings: `kubernetes` of the profile.
        environment: variables of this process: run id and owner (`objects.job`), tracked run,
            KUBECONFIG.
        log: called with a line whenever the object's state changes.

    Raises:
        ClusterError: a variable is not set, the API server refuses or is unreachable for ten
            minutes, or somebody else deleted the object. The object is deleted.
        StepTerminated: a signal came; the object of a Job's step is deleted, that of a Kubeflow run
            is left to the next attempt or to the collector.
    """
    launched_by = Owner(*(_variable(environment, name, kind) for name in OWNER_VARIABLES))
    run_id = _variable(environment, RUN_ID_VARIABLE, kind)
    objects = LaunchedObjects(kind, settings.pipeline_namespace, environment)
    is_kubeflow = launched_by.kind == "Pod"
    passed_on = {name: environment[name] for name in _PASSED_ON if name in environment}
    if is_kubeflow:  # the run's stages find their common tracked run by this id
        passed_on[RUN_ID_VARIABLE] = run_id
    manifest = kind.manifest(
        LaunchOrder(
            stage=stage,
            command=command,
            run_id=run_id,
            owner=objects.pod_controller(launched_by) if is_kubeflow else launched_by,
            settings=settings,
            environment={**passed_on, TRAINER_VARIABLE: kind.trainer},
            processes=processes,
        )
    )
    name = manifest["metadata"]["name"]
    with on_signals(_terminated):
        try:
            # a later attempt, or a retried Kubeflow run, uses the same name: without this, the
            # object that failed before would fail it at once
            objects.delete_failed(manifest)
            objects.create(manifest)
            return _watched(objects, f"{kind.kind} {name}", name, log)
        except (ClusterError, StepTerminated) as reason:
            if is_kubeflow and isinstance(reason, StepTerminated):
                log(f"leaving {kind.kind} {name} to the next attempt: {reason}")
            else:
                log(f"deleting {kind.kind} {name}: {reason}")
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
            "Job made by `espalier.cluster.objects.job`, which names the owner of the "
            f'{kind.kind}; or set it to "job"'
        )
    return value


def _terminated(number: int) -> NoReturn:
    ignore_signals()
    raise StepTerminated(number)

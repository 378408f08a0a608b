"""The serving Deployment: read, apply, annotate, record events, collect the faults of its pods."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from espalier.cluster.kubernetes_api import (
    CONFLICT,
    ApiError,
    ApiRetries,
    KubernetesApi,
    apply,
    cluster_configuration,
    create,
    merge,
    object_path,
    read,
)
from espalier.cluster.objects.names import MODEL_VERSION_ANNOTATION, NAME_LABEL, K8sObject
from espalier.cluster.objects.serving import DEPLOYMENT, FIELD_MANAGER
from espalier.records import ClusterError, ServingError
from espalier.serving.decision import RolloutMemory, RolloutState

RETRIES = ApiRetries(attempts=1, timeout_s=10.0)
"""One attempt: the controller repeats its whole step."""
_MAX_NOTE = 1000
"""Characters of an event's message; the API server refuses more than 1,024."""
_MAX_TERMINATION = 300
"""Characters of a container's termination message: the end, where an error stands."""


class ServingDeployment:
    """The serving Deployment of one namespace."""

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._path = object_path("apps/v1", "deployments", namespace, DEPLOYMENT)

    @classmethod
    def open(cls, namespace: str, kubeconfig: Path | None = None) -> ServingDeployment:
        """Connect.

        Args:
            namespace: of the Deployment.
            kubeconfig: of the cluster; None is the cluster that this pod runs in.

        Raises:
            ServingError: there is no configuration that could be used.
        """
        with _serving_errors():
            return cls(KubernetesApi(cluster_configuration(kubeconfig), RETRIES), namespace)

    def read(self) -> K8sObject:
        """Read the object.

        Raises:
            ServingError: it is not there, or the API server is away or refuses.
        """
        with _serving_errors():
            return self._api.send(read(self._path, f"read the Deployment {DEPLOYMENT}"))

    def apply(self, fields: K8sObject) -> None:
        """Apply these fields and take their ownership (server-side apply, forced).

        Raises:
            ServingError: the API server is away or refuses.
        """
        purpose = f"roll the Deployment {DEPLOYMENT}"
        with _serving_errors():
            self._api.send(apply(self._path, fields, manager=FIELD_MANAGER, purpose=purpose))

    def remember(self, memory: RolloutMemory, state: RolloutState) -> None:
        """Write the memory into the annotations, unless the Deployment changed since it was read.

        Raises:
            ServingError: it was changed since, or the API server is away or refuses.
        """
        metadata = {"annotations": memory.annotations, "resourceVersion": state.resource_version}
        purpose = f"annotate the Deployment {DEPLOYMENT}"
        with _serving_errors():
            self._api.send(
                merge(self._path, {"metadata": metadata}, purpose, fieldManager=FIELD_MANAGER)
            )

    def faults(self, version: str) -> str:
        """Faults that the pods of a version report; empty where there are none.

        Raises:
            ServingError: the API server is away or refuses.
        """
        pods = object_path("v1", "pods", self._namespace)
        selector = f"{NAME_LABEL}={DEPLOYMENT}"
        with _serving_errors():
            listed = self._api.send(read(pods, "list the serving pods", labelSelector=selector))
        return pod_faults(listed["items"], version)

    def record(self, reason: str, note: str, state: RolloutState, *, warns: bool) -> None:
        """Record an event of the Deployment, once: a restarted controller does not repeat it.

        Raises:
            ServingError: the API server is away or refuses.
        """
        event = _event(reason, note, state, self._namespace, warns=warns)
        events = object_path("v1", "events", self._namespace)
        with _serving_errors():
            try:
                self._api.send(create(events, event, "record an event"))
            except ApiError as error:
                if error.status != CONFLICT:  # it is recorded already
                    raise


@contextmanager
def _serving_errors() -> Iterator[None]:
    """Raise what the API server refuses as a ServingError."""
    try:
        yield
    except ClusterError as error:
        raise ServingError(str(error)) from error


def _event(
    reason: str, note: str, state: RolloutState, namespace: str, *, warns: bool
) -> K8sObject:
    named = hashlib.sha256(f"{state.uid} {reason} {note}".encode()).hexdigest()[:16]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{DEPLOYMENT}.{named}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": DEPLOYMENT,
            "namespace": namespace,
            "uid": state.uid,
        },
        "type": "Warning" if warns else "Normal",
        "reason": reason,
        "message": note[:_MAX_NOTE],
        "source": {"component": FIELD_MANAGER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def pod_faults(pods: Iterable[K8sObject], version: str) -> str:
    """Why pods of a version are not ready, in one line, each fault once."""
    faults: dict[str, None] = {}
    for pod in pods:
        annotations = pod["metadata"].get("annotations") or {}
        if annotations.get(MODEL_VERSION_ANNOTATION) == version:
            faults.update(dict.fromkeys(_faults(pod.get("status") or {})))
    return "; ".join(faults)


def _faults(status: K8sObject) -> Iterator[str]:
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield f"not scheduled: {condition.get('message', condition.get('reason', ''))}"
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason", "ContainerCreating") not in (
            "ContainerCreating",
            "PodInitializing",
        ):
            yield f"{container['name']}: {waiting['reason']}"
        for field in ("state", "lastState"):
            ended = (container.get(field) or {}).get("terminated")
            if ended:
                words = " ".join((ended.get("message") or "").split())[-_MAX_TERMINATION:]
                yield f"{container['name']}: exit {ended.get('exitCode')} {words}".rstrip()

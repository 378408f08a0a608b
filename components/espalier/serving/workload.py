"""The Kubernetes object whose pods serve a version, as the controller reads and changes it.

Its kinds are deployment.py (a Deployment) and llm_services.py (KServe's LLMInferenceService). The
controller makes the same decisions for both.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, NamedTuple

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
from espalier.cluster.objects.serving import FIELD_MANAGER
from espalier.records import ClusterError, ServingError
from espalier.serving.decision import Champion, RolloutMemory, RolloutState

RETRIES = ApiRetries(attempts=1, timeout_s=10.0)
"""One attempt: the controller repeats its whole step."""
_MAX_NOTE = 1000
"""Longest message of an event, in characters; the API server refuses more than 1,024."""
_MAX_TERMINATION = 300
"""Last characters of a container's termination message that are kept; the error is at the end."""


class Address(NamedTuple):
    """URL of the server, and the value of `model` that selects the version."""

    url: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSettings:
    """Settings of a workload of either kind."""

    namespace: str
    model: str
    """Name of the registered model."""
    queue: str | None = None
    """Kueue's LocalQueue for the pods; None: no queue."""
    url: str | None = None
    """URL of the health check; None: the pods' Service."""


class Workload(ABC):
    """The object of one namespace whose pods serve a version.

    Every method raises ServingError where the API server cannot be reached or refuses, and can
    then be repeated.
    """

    api_version: ClassVar[str]
    kind: ClassVar[str]
    plural: ClassVar[str]
    name: ClassVar[str]
    """Name of the object, and the name label of its pods."""

    def __init__(self, api: KubernetesApi, settings: WorkloadSettings) -> None:
        self._api = api
        self._settings = settings
        self._namespace = settings.namespace
        self._path = object_path(self.api_version, self.plural, settings.namespace, self.name)

    @abstractmethod
    def read(self) -> RolloutState:
        """Read the version in the pod template, and the progress of its roll-out."""

    @abstractmethod
    def address(self, version: str) -> Address:
        """Address at which a version answers."""

    @abstractmethod
    def _fields(self, target: Champion) -> K8sObject:
        """The object's fields, with the version's name and digest, for a server-side apply."""

    def roll(self, target: Champion) -> None:
        """Start a rolling update to a version."""
        purpose = f"roll the {self.kind} {self.name}"
        fields = self._fields(target)
        with serving_errors():
            self._api.send(apply(self._path, fields, manager=FIELD_MANAGER, purpose=purpose))

    def remember(self, memory: RolloutMemory, state: RolloutState) -> None:
        """Write the memory into annotations, unless the object changed since it was read."""
        metadata = {"annotations": memory.annotations, "resourceVersion": state.resource_version}
        purpose = f"annotate the {self.kind} {self.name}"
        with serving_errors():
            self._api.send(
                merge(self._path, {"metadata": metadata}, purpose, fieldManager=FIELD_MANAGER)
            )

    def faults(self, version: str) -> str:
        """Faults of the pods of a version, in one line; empty where there are none."""
        pods = object_path("v1", "pods", self._namespace)
        selector = f"{NAME_LABEL}={self.name}"
        with serving_errors():
            listed = self._api.send(read(pods, "list the serving pods", labelSelector=selector))
        return pod_faults(listed["items"], version)

    def record(self, reason: str, note: str, state: RolloutState, *, warns: bool) -> None:
        """Record an event of the object; the same event is recorded once, also after a restart.

        Args:
            reason: the event's reason, one word.
            note: the event's message.
            state: the object's state.
            warns: whether the event's type is Warning.
        """
        about = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "namespace": self._namespace,
            "uid": state.uid,
        }
        event = _event(reason, note, about, warns=warns)
        folder = object_path("v1", "events", self._namespace)
        with serving_errors():
            try:
                self._api.send(create(folder, event, "record an event"))
            except ApiError as error:
                if error.status != CONFLICT:  # it is recorded already
                    raise


def connected(kubeconfig: Path | None) -> KubernetesApi:
    """Connect to the cluster of a kubeconfig; None: the cluster that this pod runs in.

    Raises:
        ServingError: there is no usable configuration.
    """
    with serving_errors():
        return KubernetesApi(cluster_configuration(kubeconfig), RETRIES)


@contextmanager
def serving_errors() -> Iterator[None]:
    """Turn a ClusterError of the block into a ServingError."""
    try:
        yield
    except ClusterError as error:
        raise ServingError(str(error)) from error


def _event(reason: str, note: str, of: K8sObject, *, warns: bool) -> K8sObject:
    named = hashlib.sha256(f"{of['uid']} {reason} {note}".encode()).hexdigest()[:16]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{of['name']}.{named}", "namespace": of["namespace"]},
        "involvedObject": of,
        "type": "Warning" if warns else "Normal",
        "reason": reason,
        "message": note[:_MAX_NOTE],
        "source": {"component": FIELD_MANAGER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def pod_faults(pods: Iterable[K8sObject], version: str) -> str:
    """Reasons why pods of a version are not ready, in one line, each reason once."""
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

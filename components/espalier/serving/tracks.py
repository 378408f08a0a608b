"""The contract of what serves: two tracks of pods, and the share of the traffic that each gets.

Siblings: deployment.py (two Deployments behind one Service), llm_services.py (two
LLMInferenceServices of KServe in one routing group). The controller decides the same for both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from espalier.cluster.kubernetes_api import (
    CONFLICT,
    ApiError,
    ApiRetries,
    KubernetesApi,
    cluster_configuration,
    create,
    object_path,
    read,
)
from espalier.cluster.objects.names import MODEL_VERSION_ANNOTATION, K8sObject
from espalier.cluster.objects.serving import FIELD_MANAGER
from espalier.records import ClusterError, ServingError
from espalier.serving.asking import Address
from espalier.serving.decision import Champion, RolloutMemory, RolloutState

RETRIES = ApiRetries(attempts=1, timeout_s=10.0)
"""One attempt: the controller repeats its whole step."""
_MAX_NOTE = 1000
"""Characters of an event's message; the API server refuses more than 1,024."""
_MAX_TERMINATION = 300
"""Characters of a container's termination message: the end, where an error stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackSettings:
    """What both siblings need to know."""

    namespace: str
    model: str
    """Registered name."""
    queue: str | None = None
    """Kueue's LocalQueue of the pods."""
    stable_url: str | None = None
    """Where the stable track alone is asked; its Service by default."""
    canary_url: str | None = None
    """Where the canary alone is asked; its Service by default."""

    def url(self, *, of_canary: bool, default: str) -> str:
        """Where a track is asked."""
        return (self.canary_url if of_canary else self.stable_url) or default


class ServingTracks(Protocol):
    """What serves in one namespace.

    Every method raises ServingError where the API server is away or refuses; nothing is lost by
    doing it again.
    """

    def read(self) -> RolloutState:
        """Read the state of both tracks."""
        ...

    def roll(self, target: Champion) -> None:
        """Have the stable track serve a version."""
        ...

    def weigh(self, target: Champion, weight: float, state: RolloutState) -> None:
        """Go towards a canary of a version with this share: its pods first, then their traffic."""
        ...

    def retreat(self) -> None:
        """Lead all traffic to the stable track."""
        ...

    def end_canary(self) -> None:
        """Take the canary's pods away."""
        ...

    def address(self, version: str, *, of_canary: bool) -> Address:
        """Where a track alone is asked for a version."""
        ...

    def remember(self, memory: RolloutMemory, state: RolloutState) -> None:
        """Write the memory, unless the stable track's object changed since it was read."""
        ...

    def faults(self, version: str) -> str:
        """Faults that the pods of a version report; empty where there are none."""
        ...

    def record(self, reason: str, note: str, state: RolloutState, *, warns: bool) -> None:
        """Record an event of the stable track's object, once: a restart does not repeat it."""
        ...


def connected(kubeconfig: Path | None) -> KubernetesApi:
    """Connect to the cluster of a kubeconfig, or to the one that this pod runs in.

    Raises:
        ServingError: there is no configuration that could be used.
    """
    with serving_errors():
        return KubernetesApi(cluster_configuration(kubeconfig), RETRIES)


@contextmanager
def serving_errors() -> Iterator[None]:
    """Raise what the API server refuses as a ServingError."""
    try:
        yield
    except ClusterError as error:
        raise ServingError(str(error)) from error


def record_event(api: KubernetesApi, reason: str, note: str, of: K8sObject, *, warns: bool) -> None:
    """Create an event; one that is there already is the same.

    Args:
        api: of the cluster.
        reason: in one word.
        note: for people.
        of: apiVersion, kind, name, namespace and uid of what it is about.
        warns: whether somebody should look.

    Raises:
        ServingError: the API server is away or refuses.
    """
    folder = object_path("v1", "events", of["namespace"])
    with serving_errors():
        try:
            api.send(create(folder, _event(reason, note, of, warns=warns), "record an event"))
        except ApiError as error:
            if error.status != CONFLICT:  # it is recorded already
                raise


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


def listed_faults(api: KubernetesApi, namespace: str, selector: str, version: str) -> str:
    """`pod_faults` of the pods that a label selector matches.

    Raises:
        ServingError: the API server is away or refuses.
    """
    pods = object_path("v1", "pods", namespace)
    with serving_errors():
        listed = api.send(read(pods, "list the serving pods", labelSelector=selector))
    return pod_faults(listed["items"], version)


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

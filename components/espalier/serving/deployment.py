"""The serving Deployment: read, applied, annotated, and events of it recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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
from espalier.cluster.objects.names import NAME_LABEL, K8sObject
from espalier.cluster.objects.serving import DEPLOYMENT, FIELD_MANAGER
from espalier.records import ClusterError, ServingError
from espalier.serving.pod_faults import pod_faults
from espalier.serving.rollout_state import Memory, RolloutState

RETRIES = ApiRetries(attempts=1, timeout_s=10.0)
"""The controller repeats whole steps."""
_MAX_NOTE = 1000
"""Characters of an event's message; the API server refuses more than 1,024."""


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
        """The object as it is.

        Raises:
            ServingError: it is not there, or the API server is away or refuses.
        """
        with _serving_errors():
            return self._api.send(read(self._path, f"read the Deployment {DEPLOYMENT}"))

    def apply(self, fields: K8sObject) -> None:
        """Own these fields of the Deployment, whoever wrote them last.

        Raises:
            ServingError: the API server is away or refuses.
        """
        purpose = f"roll the Deployment {DEPLOYMENT}"
        with _serving_errors():
            self._api.send(apply(self._path, fields, manager=FIELD_MANAGER, purpose=purpose))

    def remember(self, memory: Memory, state: RolloutState) -> None:
        """Write the memory into the Deployment, if it is still the one that was looked at.

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
        """What the pods of a version say is wrong with them; empty where they say nothing.

        Raises:
            ServingError: the API server is away or refuses.
        """
        pods = object_path("v1", "pods", self._namespace)
        selector = f"{NAME_LABEL}={DEPLOYMENT}"
        with _serving_errors():
            listed = self._api.send(read(pods, "list the serving pods", labelSelector=selector))
        return pod_faults(listed["items"], version)

    def record(self, reason: str, note: str, state: RolloutState, *, warns: bool) -> None:
        """An event of the Deployment; the same one is recorded once, whoever starts anew.

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
    """The API server's faults as errors of this room."""
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

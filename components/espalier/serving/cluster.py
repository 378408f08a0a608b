"""The serving Deployment through the Kubernetes client: read, applied, annotated, spoken of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espalier.manifests.objects import NAME_LABEL, K8sObject
from espalier.manifests.serving import DEPLOYMENT, FIELD_MANAGER
from espalier.records import ServingError
from espalier.serving.pod_faults import pod_faults
from espalier.serving.rollout_state import Memory, RolloutState

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_TIMEOUT_S = 10.0
_MAX_NOTE = 1000
"""Characters of an event's message; the API server refuses more than 1,024."""


class Cluster:
    """One namespace's serving Deployment."""

    def __init__(self, connection: ApiClient, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace

    @classmethod
    def open(cls, namespace: str, kubeconfig: Path | None = None) -> Cluster:
        """Connect.

        Args:
            namespace: of the Deployment.
            kubeconfig: of the cluster; None is the cluster that this pod runs in.

        Raises:
            ServingError: there is no configuration that could be used.
        """
        from kubernetes import client, config

        settings = client.Configuration()
        settings.retries = False  # pyright: ignore[reportAttributeAccessIssue] (urllib3 takes it)
        try:
            if kubeconfig is None:
                config.load_incluster_config(client_configuration=settings)
            else:
                config.load_kube_config(str(kubeconfig), client_configuration=settings)
        except config.ConfigException as error:
            raise ServingError(
                f"no cluster to talk to: {error}. Run it in a pod, or name a --kubeconfig."
            ) from error
        return cls(client.ApiClient(settings), namespace)

    def deployment(self) -> K8sObject:
        """The object as it is.

        Raises:
            ServingError: it is not there, or the API server is away or refuses.
        """
        with _reaching(f"read the Deployment {DEPLOYMENT}"):
            return self._call("GET", self._deployment_path())

    def apply(self, fields: K8sObject) -> None:
        """Own these fields of the Deployment, whoever wrote them last.

        Raises:
            ServingError: the API server is away or refuses.
        """
        query = [("fieldManager", FIELD_MANAGER), ("force", "true")]
        with _reaching(f"roll the Deployment {DEPLOYMENT}"):
            self._call(
                "PATCH", self._deployment_path(), fields, query, kind="application/apply-patch+yaml"
            )

    def remember(self, memory: Memory, state: RolloutState) -> None:
        """Write the memory into the Deployment, if it is still the one that was looked at.

        Raises:
            ServingError: it was changed since, or the API server is away or refuses.
        """
        metadata = {"annotations": memory.annotations, "resourceVersion": state.resource_version}
        query = [("fieldManager", FIELD_MANAGER)]
        with _reaching(f"annotate the Deployment {DEPLOYMENT}"):
            self._call(
                "PATCH",
                self._deployment_path(),
                {"metadata": metadata},
                query,
                kind="application/merge-patch+json",
            )

    def faults(self, version: str) -> str:
        """What the pods of a version say is wrong with them; empty where they say nothing.

        Raises:
            ServingError: the API server is away or refuses.
        """
        query = [("labelSelector", f"{NAME_LABEL}={DEPLOYMENT}")]
        with _reaching("list the serving pods"):
            listed = self._call("GET", f"/api/v1/namespaces/{self._namespace}/pods", query=query)
        return pod_faults(listed["items"], version)

    def record(self, reason: str, note: str, state: RolloutState, *, warns: bool) -> None:
        """An event of the Deployment; the same one is recorded once, whoever starts anew.

        Raises:
            ServingError: the API server is away or refuses.
        """
        event = _event(reason, note, state, self._namespace, warns=warns)
        with _reaching("record an event"):
            path = f"/api/v1/namespaces/{self._namespace}/events"
            self._call("POST", path, event, fine=409)

    def _deployment_path(self) -> str:
        return f"/apis/apps/v1/namespaces/{self._namespace}/deployments/{DEPLOYMENT}"

    def _call(
        self,
        method: str,
        path: str,
        body: K8sObject | None = None,
        query: list[tuple[str, str]] | None = None,
        *,
        kind: str = "application/json",
        fine: int | None = None,
    ) -> K8sObject:
        """One request: the client's own methods cannot apply on the server."""
        from kubernetes.client import ApiException

        try:
            answer: Any = self._connection.call_api(
                path,
                method,
                query_params=query or [],
                header_params={"Accept": "application/json", "Content-Type": kind},
                body=body,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )
        except ApiException as refusal:
            if refusal.status == fine:
                return {}
            raise
        return json.loads(answer.data)


@contextmanager
def _reaching(purpose: str) -> Iterator[None]:
    """One error for whatever keeps the API server from doing it."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as refusal:
        raise ServingError(
            f"could not {purpose}: HTTP {refusal.status} {refusal.reason}"
        ) from refusal
    except (HTTPError, OSError, ValueError) as error:
        raise ServingError(
            f"could not {purpose}: the API server does not answer ({type(error).__name__})"
        ) from error


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

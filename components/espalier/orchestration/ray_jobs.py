"""RayJobs at a cluster's API server: made once, read while the server restarts, deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from espalier.artifacts import ClusterError
from espalier.cluster.kubernetes_api import KubernetesApi, Patience, cluster_configuration
from espalier.cluster.kubernetes_requests import delete, object_path, owner_uid
from espalier.manifests.objects import K8sObject

PATIENCE = Patience(attempts=None, total_s=600.0, first_pause_s=0.5, longest_pause_s=15.0)
"""An upgrade of the API server takes minutes, and training goes on meanwhile."""
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

"""RayJobs at a cluster's API server: made once, read while the server restarts, deleted."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import urllib3

from espalier.manifests.objects import K8sObject
from espalier.records import ClusterError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

Answer = TypeVar("Answer")

PATIENCE_S = 600.0
"""How long the API server may be away: an upgrade takes minutes, and training goes on meanwhile."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
_TIMEOUT_S = 30.0
_TRANSIENT = frozenset({0, 429, 500, 502, 503, 504})
_NOT_FOUND, _CONFLICT = 404, 409
_GROUP = ("ray.io", "v1")
_PLURAL = "rayjobs"
_ENDED = frozenset({"Complete", "Failed", "ValidationFailed"})

_log = logging.getLogger(__name__)


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
        from kubernetes import client

        self._namespace = namespace
        self._api = client.CustomObjectsApi(_connected(environment))

    def create(self, manifest: K8sObject) -> None:
        """Make the RayJob, or go on with the one that an earlier pod of the same owner made.

        Raises:
            ClusterError: another owner has one of that name; refused; the server is away.
        """
        from kubernetes.client import ApiException

        name, owner = manifest["metadata"]["name"], _owner(manifest)

        def made() -> bool:
            try:
                self._api.create_namespaced_custom_object(
                    *_GROUP, self._namespace, _PLURAL, manifest,
                    _request_timeout=_TIMEOUT_S,
                )  # fmt: skip
            except ApiException as refusal:
                if refusal.status != _CONFLICT:
                    raise
                return False
            return True

        if self._ask(f"create RayJob {name}", made):
            return
        present = self._read(name)
        if present is None or _owner(present) != owner:
            raise ClusterError(
                f"there is a RayJob {self._namespace}/{name} of another launcher; delete it, or "
                "give the run another id"
            )

    def status(self, name: str) -> RayJobStatus:
        """How it is doing.

        Raises:
            ClusterError: somebody has deleted it; refused; the server is away.
        """
        found = self._read(name)
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
        from kubernetes.client import ApiException

        name = manifest["metadata"]["name"]
        present = self._read(name)
        if present is None or _owner(present) != _owner(manifest):
            return
        options = {
            "propagationPolicy": "Background",
            "preconditions": {"uid": present["metadata"]["uid"]},
        }

        def deleted() -> None:
            try:
                self._api.delete_namespaced_custom_object(
                    *_GROUP, self._namespace, _PLURAL, name,
                    body=options, _request_timeout=_TIMEOUT_S,
                )  # fmt: skip
            except ApiException as refusal:
                if refusal.status not in (_NOT_FOUND, _CONFLICT):  # gone, or replaced
                    raise

        self._ask(f"delete RayJob {name}", deleted)

    def _read(self, name: str) -> dict[str, Any] | None:
        from kubernetes.client import ApiException

        def read() -> dict[str, Any] | None:
            try:
                found: Any = self._api.get_namespaced_custom_object(
                    *_GROUP, self._namespace, _PLURAL, name,
                    _request_timeout=_TIMEOUT_S,
                )  # fmt: skip
            except ApiException as refusal:
                if refusal.status != _NOT_FOUND:
                    raise
                return None
            return found

        return self._ask(f"read RayJob {name}", read)

    def _ask(self, what: str, request: Callable[[], Answer]) -> Answer:
        """The answer, asked for until the server has been away too long; a name makes it safe."""
        from kubernetes.client import ApiException

        pause_s, deadline = _FIRST_PAUSE_S, time.monotonic() + PATIENCE_S
        while True:
            try:
                return request()
            except ApiException as refusal:
                fault: Exception = refusal
                said = f"HTTP {refusal.status} {refusal.reason}"
                if refusal.status not in _TRANSIENT:
                    raise ClusterError(f"could not {what}: {said}{_message(refusal)}") from refusal
            except urllib3.exceptions.HTTPError as error:
                fault, said = error, f"{type(error).__name__}: {error}"
            if time.monotonic() + pause_s > deadline:
                raise ClusterError(
                    f"could not {what}: the API server was away for {PATIENCE_S:g} s ({said})"
                ) from fault
            _log.warning("could not %s (%s), next attempt in %g s", what, said, pause_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _connected(environment: Mapping[str, str]) -> ApiClient:
    from kubernetes import client, config

    settings = client.Configuration()
    try:
        if kubeconfig := environment.get("KUBECONFIG"):
            config.load_kube_config(os.path.expanduser(kubeconfig), client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)
    except config.ConfigException as error:
        raise ClusterError(
            f"no cluster to make a RayJob in: {error}. Run in a pod, or set KUBECONFIG"
        ) from error
    settings.retries = False  # pyright: ignore[reportAttributeAccessIssue] (`_ask` repeats)
    return client.ApiClient(settings)


def _owner(manifest: Mapping[str, Any]) -> str:
    references = manifest["metadata"].get("ownerReferences") or [{}]
    return str(references[0].get("uid", ""))


def _message(refusal: Exception) -> str:
    """What the API server says, out of its Status object."""
    try:
        return f": {json.loads(getattr(refusal, 'body', '') or '')['message']}"
    except (ValueError, TypeError, KeyError):
        return ""

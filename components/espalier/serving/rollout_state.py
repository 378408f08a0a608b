"""How far the serving Deployment is, read from the object alone: a restart forgets nothing.

What the controller remembers is in the Deployment's own annotations:

    espalier.dev/last-good      version that last became ready everywhere
    espalier.dev/failed         promotion whose roll-out failed, as VERSION@WHEN
    espalier.dev/failed-reason  and why
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from espalier.cluster.objects.names import MODEL_VERSION_ANNOTATION, K8sObject
from espalier.cluster.objects.serving import CONTAINER, MODEL_VARIABLE, version_reference

LAST_GOOD = "espalier.dev/last-good"
FAILED = "espalier.dev/failed"
FAILED_REASON = "espalier.dev/failed-reason"


class Progress(enum.Enum):
    """How far a roll-out is."""

    ROLLING = "rolling"
    READY = "ready"
    """Every pod is of the version asked for, and available."""
    STUCK = "stuck"
    """The Deployment's own deadline passed without progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the controller wrote down."""

    last_good: str | None = None
    failed: str | None = None
    """A `Champion.promotion`."""
    failed_reason: str | None = None

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> Self:
        """What is in a Deployment's annotations."""
        return cls(
            last_good=annotations.get(LAST_GOOD) or None,
            failed=annotations.get(FAILED) or None,
            failed_reason=annotations.get(FAILED_REASON) or None,
        )

    @property
    def annotations(self) -> dict[str, str | None]:
        """As a merge patch writes them; None removes one."""
        return {
            LAST_GOOD: self.last_good,
            FAILED: self.failed,
            FAILED_REASON: self.failed_reason,
        }

    def with_failure(self, promotion: str, reason: str) -> Self:
        """A promotion was tried, and failed."""
        return replace(self, failed=promotion, failed_reason=reason)

    def with_success(self, version: str) -> Self:
        """A version is ready; whatever failed before may be tried again."""
        return replace(self, last_good=version, failed=None, failed_reason=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """The serving Deployment at one moment."""

    uid: str
    resource_version: str
    asked: str | None
    """Version of the pod template; None before the first promotion."""
    progress: Progress
    reason: str
    """Why it is stuck, in Kubernetes' words."""
    memory: Memory

    @classmethod
    def read(cls, deployment: K8sObject, model: str) -> Self:
        """What the object says of versions of `model`."""
        seen = _progress(deployment)
        return cls(
            uid=deployment["metadata"].get("uid", ""),
            resource_version=deployment["metadata"].get("resourceVersion", ""),
            asked=_asked(deployment, model),
            progress=seen.progress,
            reason=seen.reason,
            memory=Memory.read(deployment["metadata"].get("annotations") or {}),
        )


class _Seen(NamedTuple):
    progress: Progress
    reason: str = ""


def _asked(deployment: K8sObject, model: str) -> str | None:
    """Where annotation and environment differ, somebody's hand was in it: none was asked for."""
    template = deployment["spec"]["template"]
    version = (template["metadata"].get("annotations") or {}).get(MODEL_VERSION_ANNOTATION)
    expected = {"name": MODEL_VARIABLE, "value": version_reference(model, version or "")}
    for container in template["spec"]["containers"]:
        if container["name"] == CONTAINER and expected in (container.get("env") or []):
            return version
    return None


def _progress(deployment: K8sObject) -> _Seen:
    """As `kubectl rollout status` tells it; a Deployment without replicas is never ready."""
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
        return _Seen(Progress.ROLLING)
    for condition in status.get("conditions") or []:
        if condition.get("reason") == "ProgressDeadlineExceeded":
            return _Seen(Progress.STUCK, condition.get("message", "its deadline passed"))
    counts = [status.get(name, 0) for name in ("updatedReplicas", "replicas", "availableReplicas")]
    is_ready = wanted > 0 and all(count == wanted for count in counts)
    return _Seen(Progress.READY if is_ready else Progress.ROLLING)

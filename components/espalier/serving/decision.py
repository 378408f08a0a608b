"""The controller's decision: from the champion and the serving state to the next action.

The pods are rolled out to the champion, checked for an answer, and rolled back to the last good
version where the check fails. `decide` is pure: no network, no memory. The same state always gives
the same action, so a controller that was killed continues where it was. Its memory is in
annotations of the serving object:

    espalier.dev/last-good      last version that became ready in all pods and passed the check
    espalier.dev/failed         promotion whose roll-out failed, as VERSION@TIME
    espalier.dev/failed-reason  reason of the failure
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, TypeAlias

from espalier.cluster.objects.names import MODEL_VERSION_ANNOTATION, K8sObject
from espalier.cluster.objects.serving import CONTAINER, MODEL_VARIABLE, version_reference
from espalier.registry.model import CHAMPION_SINCE, GATE_REASON, ModelVersion

LAST_GOOD = "espalier.dev/last-good"
FAILED = "espalier.dev/failed"
FAILED_REASON = "espalier.dev/failed-reason"
STATE_TAG = "espalier.serving"
REASON_TAG = "espalier.serving_reason"
"""Tags of a model version: the outcome of its roll-out, and the reason."""


class ServingTag(enum.StrEnum):
    """Values of STATE_TAG."""

    SERVED = "served"
    FAILED = "failed"
    REFUSED = "refused"


class VersionTags(NamedTuple):
    """Outcome and reason in a version's tags; empty where it has none."""

    state: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Champion:
    """The fields of a model version that the controller uses."""

    model: str
    version: str
    policy_digest: str
    may_lead: bool
    """Whether a gate pass, or a forced promotion's reason, is recorded."""
    gate: str
    """The gate's verdict and its reason, for messages."""
    since: str
    """Time of the last promotion; empty where it was never promoted."""
    location: str = ""
    """URI of its files as MLflow lists them."""
    told: VersionTags = field(default_factory=VersionTags)

    @classmethod
    def of(cls, version: ModelVersion) -> Self:
        """Read it from a registered version."""
        reason = version.tags.get(GATE_REASON, "")
        return cls(
            model=version.model,
            version=version.version,
            policy_digest=version.policy_digest,
            may_lead=version.may_lead,
            gate=f"{version.gate}: {reason}" if reason else version.gate,
            since=version.tags.get(CHAMPION_SINCE, ""),
            location=version.location,
            told=VersionTags(version.tags.get(STATE_TAG, ""), version.tags.get(REASON_TAG, "")),
        )

    @property
    def promotion(self) -> str:
        """Name of this promotion, VERSION@TIME: promoting a version again gives another name."""
        return f"{self.version}@{self.since}"


class RolloutProgress(enum.Enum):
    """Progress of a roll-out."""

    ROLLING = "rolling"
    READY = "ready"
    """All pods have the wanted version and are available."""
    STUCK = "stuck"
    """The Deployment's `progressDeadlineSeconds` passed without progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMemory:
    """The controller's memory in the annotations of the serving object."""

    last_good: str | None = None
    failed: str | None = None
    """`Champion.promotion` of the roll-out that failed."""
    failed_reason: str | None = None

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> Self:
        """Read the annotations of the serving object."""
        return cls(
            last_good=annotations.get(LAST_GOOD) or None,
            failed=annotations.get(FAILED) or None,
            failed_reason=annotations.get(FAILED_REASON) or None,
        )

    @property
    def annotations(self) -> dict[str, str | None]:
        """Annotations for a merge patch; None removes one."""
        return {
            LAST_GOOD: self.last_good,
            FAILED: self.failed,
            FAILED_REASON: self.failed_reason,
        }

    def with_failure(self, promotion: str, reason: str) -> Self:
        """The memory after a promotion's roll-out failed."""
        return replace(self, failed=promotion, failed_reason=reason)

    def with_success(self, version: str) -> Self:
        """The memory after a version became ready; forgets an earlier failure."""
        return replace(self, last_good=version, failed=None, failed_reason=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """State of the serving workload at one moment, read from the cluster's objects."""

    uid: str
    resource_version: str
    asked: str | None
    """Version in the pod template; None before the first promotion."""
    progress: RolloutProgress
    reason: str
    """Kubernetes' message where it is stuck, else empty."""
    memory: RolloutMemory

    @classmethod
    def read(cls, deployment: K8sObject, model: str) -> Self:
        """Read the state of a Deployment that serves versions of `model`."""
        reading = rollout_progress(deployment)
        return cls(
            uid=deployment["metadata"].get("uid", ""),
            resource_version=deployment["metadata"].get("resourceVersion", ""),
            asked=_asked_version(deployment, model),
            progress=reading.progress,
            reason=reading.reason,
            memory=RolloutMemory.read(deployment["metadata"].get("annotations") or {}),
        )


class RolloutReading(NamedTuple):
    """Progress of a roll-out, and the reason where it is stuck."""

    progress: RolloutProgress
    reason: str = ""


def _asked_version(deployment: K8sObject, model: str) -> str | None:
    """Version in the pod template; None where annotation and environment differ after an edit."""
    template = deployment["spec"]["template"]
    version = (template["metadata"].get("annotations") or {}).get(MODEL_VERSION_ANNOTATION)
    expected = {"name": MODEL_VARIABLE, "value": version_reference(model, version or "")}
    for container in template["spec"]["containers"]:
        if container["name"] == CONTAINER and expected in (container.get("env") or []):
            return version
    return None


def rollout_progress(deployment: K8sObject) -> RolloutReading:
    """Progress as `kubectl rollout status` computes it; without replicas it is never ready."""
    status, wanted = deployment.get("status") or {}, deployment["spec"]["replicas"]
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
        return RolloutReading(RolloutProgress.ROLLING)
    for condition in status.get("conditions") or []:
        if condition.get("reason") == "ProgressDeadlineExceeded":
            return RolloutReading(
                RolloutProgress.STUCK, condition.get("message", "its deadline passed")
            )
    counts = [status.get(name, 0) for name in ("updatedReplicas", "replicas", "availableReplicas")]
    is_ready = wanted > 0 and all(count == wanted for count in counts)
    return RolloutReading(RolloutProgress.READY if is_ready else RolloutProgress.ROLLING)


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing in this step."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Keep the served version: the alias points at one that may not be served."""

    champion: Champion


@dataclass(frozen=True, slots=True)
class Roll:
    """Roll the pods out to the champion's version."""

    version: str
    why: str


@dataclass(frozen=True, slots=True)
class RollBack:
    """Roll the pods back to the last good version."""

    version: str
    why: str


@dataclass(frozen=True, slots=True)
class CheckHealth:
    """Check that the pods, which are all ready, answer as this version."""

    champion: Champion


@dataclass(frozen=True, slots=True)
class Fail:
    """Record that the promotion's roll-out failed; the next step rolls back."""

    champion: Champion
    reason: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Correct the version's tags, which differ from its outcome."""

    champion: Champion
    told: VersionTags


Decision: TypeAlias = Wait | Refuse | Roll | CheckHealth | Fail | RollBack | Mark


def decide(champion: Champion | None, state: RolloutState) -> Decision:
    """The next action towards serving the champion.

    Args:
        champion: version that the alias points at; None where no version has the alias.
        state: of the serving workload.
    """
    if champion is None:
        return Wait("there is no champion")
    if not champion.may_lead:
        return Refuse(champion)
    if state.memory.failed == champion.promotion:
        return _after_failure(champion, state)
    if state.asked != champion.version:
        return Roll(champion.version, f"champion is version {champion.version}")
    return _rolled(champion, state)


def _rolled(champion: Champion, state: RolloutState) -> Decision:
    """The action while the pod template has the champion's version."""
    was_good = state.memory.last_good == champion.version
    if state.progress is RolloutProgress.ROLLING:
        return Wait(f"version {champion.version} is being rolled out")
    if state.progress is RolloutProgress.STUCK:
        # a version that was ready before is not the cause: something else changed
        return Wait(f"stuck: {state.reason}") if was_good else Fail(champion, state.reason)
    if not was_good or state.memory.failed is not None:
        return CheckHealth(champion)
    why = f"version {champion.version} is served"
    return _mark_or_wait(champion, VersionTags(ServingTag.SERVED, champion.gate), why)


def _after_failure(champion: Champion, state: RolloutState) -> Decision:
    """The action after a failed promotion: go to the last good version, and stay there."""
    good = state.memory.last_good
    failed = VersionTags(ServingTag.FAILED, state.memory.failed_reason or "")
    if good is None or good == champion.version:
        why = f"version {champion.version} failed, and there is no earlier good version"
        return _mark_or_wait(champion, failed, why)
    if state.asked != good:
        return RollBack(good, f"version {champion.version} failed: {state.memory.failed_reason}")
    why = f"version {good} is served, because {champion.version} failed"
    return _mark_or_wait(champion, failed, why)


def _mark_or_wait(champion: Champion, told: VersionTags, why: str) -> Decision:
    """Wait; first correct the tags, where MLflow could not be reached when the outcome was new."""
    return Wait(why) if champion.told == told else Mark(champion, told)

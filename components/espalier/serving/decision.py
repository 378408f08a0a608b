"""What the controller does next: the champion, what serves, and the decision.

The pods roll to the champion, are asked whether they answer, and roll back to the last good version
where they do not. `decide` is pure: no network, no memory. The same state always gives the same
step, so a controller that was killed goes on where it was. What it has to remember is in
annotations of the object that serves:

    espalier.dev/last-good      version that last became ready everywhere
    espalier.dev/failed         promotion whose roll-out failed, as VERSION@WHEN
    espalier.dev/failed-reason  and why
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
"""Tags of a version: what became of it when it was to be served, and why."""


class ServingTag(enum.StrEnum):
    """Values of STATE_TAG."""

    SERVED = "served"
    FAILED = "failed"
    REFUSED = "refused"


class VersionTags(NamedTuple):
    """What a version's tags say became of it."""

    state: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Champion:
    """A model version, as the controller needs to know it."""

    model: str
    version: str
    policy_digest: str
    may_lead: bool
    """Whether a gate pass, or a forced promotion's reason, is recorded."""
    gate: str
    """The gate's verdict and its reason, for people."""
    since: str
    """When it was last promoted; empty where it never was."""
    location: str = ""
    """Where MLflow lists its files."""
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
        """Names this promotion: the same version promoted again is another."""
        return f"{self.version}@{self.since}"


class RolloutProgress(enum.Enum):
    """How far a roll-out is."""

    ROLLING = "rolling"
    READY = "ready"
    """Every pod is of the version asked for, and available."""
    STUCK = "stuck"
    """The Deployment's own deadline passed without progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMemory:
    """What the controller wrote into the annotations of the object that serves."""

    last_good: str | None = None
    failed: str | None = None
    """A `Champion.promotion`."""
    failed_reason: str | None = None

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> Self:
        """Read the annotations of the object that serves."""
        return cls(
            last_good=annotations.get(LAST_GOOD) or None,
            failed=annotations.get(FAILED) or None,
            failed_reason=annotations.get(FAILED_REASON) or None,
        )

    @property
    def annotations(self) -> dict[str, str | None]:
        """For a merge patch; None removes an annotation."""
        return {
            LAST_GOOD: self.last_good,
            FAILED: self.failed,
            FAILED_REASON: self.failed_reason,
        }

    def with_failure(self, promotion: str, reason: str) -> Self:
        """The memory after the roll-out of a promotion failed."""
        return replace(self, failed=promotion, failed_reason=reason)

    def with_success(self, version: str) -> Self:
        """The memory after a version became ready; an earlier failure may be tried again."""
        return replace(self, last_good=version, failed=None, failed_reason=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """What serves at one moment, read from the objects alone."""

    uid: str
    resource_version: str
    asked: str | None
    """Version of the pod template; None before the first promotion."""
    progress: RolloutProgress
    reason: str
    """Why it is stuck, in Kubernetes' words."""
    memory: RolloutMemory

    @classmethod
    def read(cls, deployment: K8sObject, model: str) -> Self:
        """Read the state of a Deployment that serves versions of `model`."""
        seen = rollout_progress(deployment)
        return cls(
            uid=deployment["metadata"].get("uid", ""),
            resource_version=deployment["metadata"].get("resourceVersion", ""),
            asked=_asked_version(deployment, model),
            progress=seen.progress,
            reason=seen.reason,
            memory=RolloutMemory.read(deployment["metadata"].get("annotations") or {}),
        )


class RolloutReading(NamedTuple):
    """How far a roll-out is, and why it is stuck."""

    progress: RolloutProgress
    reason: str = ""


def _asked_version(deployment: K8sObject, model: str) -> str | None:
    """The version asked for; None where annotation and environment differ, as after an edit."""
    template = deployment["spec"]["template"]
    version = (template["metadata"].get("annotations") or {}).get(MODEL_VERSION_ANNOTATION)
    expected = {"name": MODEL_VARIABLE, "value": version_reference(model, version or "")}
    for container in template["spec"]["containers"]:
        if container["name"] == CONTAINER and expected in (container.get("env") or []):
            return version
    return None


def rollout_progress(deployment: K8sObject) -> RolloutReading:
    """As `kubectl rollout status` computes it; a Deployment without replicas is never ready."""
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
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
    """Nothing to do now."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The alias points at a version that may not be served; what is served stays."""

    champion: Champion


@dataclass(frozen=True, slots=True)
class Roll:
    """Have the pods serve the champion's version."""

    version: str
    why: str


@dataclass(frozen=True, slots=True)
class RollBack:
    """Have the pods serve the last good version in the champion's place."""

    version: str
    why: str


@dataclass(frozen=True, slots=True)
class CheckHealth:
    """All pods are ready: ask them whether they answer as this version."""

    champion: Champion


@dataclass(frozen=True, slots=True)
class Fail:
    """The promotion's roll-out failed; the next step rolls back."""

    champion: Champion
    reason: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Tag the version with what became of it: its tags say something else."""

    champion: Champion
    told: VersionTags


Decision: TypeAlias = Wait | Refuse | Roll | CheckHealth | Fail | RollBack | Mark


def decide(champion: Champion | None, state: RolloutState) -> Decision:
    """The next thing to do towards serving the champion.

    Args:
        champion: where the alias points; None where there is none.
        state: of what serves.
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
    """The pods have the champion's version, or are being rolled to it."""
    was_good = state.memory.last_good == champion.version
    if state.progress is RolloutProgress.ROLLING:
        return Wait(f"version {champion.version} is being rolled out")
    if state.progress is RolloutProgress.STUCK:
        # a version that was ready before is not to blame: something else was changed
        return Wait(f"stuck: {state.reason}") if was_good else Fail(champion, state.reason)
    if not was_good or state.memory.failed is not None:
        return CheckHealth(champion)
    why = f"version {champion.version} is served"
    return _told(champion, VersionTags(ServingTag.SERVED, champion.gate), why)


def _after_failure(champion: Champion, state: RolloutState) -> Decision:
    """Go back to the last good version; stay there until another promotion."""
    good = state.memory.last_good
    failed = VersionTags(ServingTag.FAILED, state.memory.failed_reason or "")
    if good is None or good == champion.version:
        why = f"version {champion.version} failed, and none was good before it"
        return _told(champion, failed, why)
    if state.asked != good:
        return RollBack(good, f"version {champion.version} failed: {state.memory.failed_reason}")
    why = f"version {good} is served, because {champion.version} failed"
    return _told(champion, failed, why)


def _told(champion: Champion, told: VersionTags, why: str) -> Decision:
    """Nothing to do but to say so in the version's tags, where MLflow was away when it happened."""
    return Wait(why) if champion.told == told else Mark(champion, told)

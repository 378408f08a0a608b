"""What the controller does next: the champion, the state of both tracks, and the decision.

There are two tracks, each a set of pods that serves one version: "stable", and "canary", which has
pods while a promoted version takes over. A canary gets the shares of `serving.canary.steps` one
after the other, is judged at each (`score.py`), and goes back to a share of 0 where it falls short.
After the last step the stable track rolls to the version while the canary answers everything; then
the stable track answers, and the canary ends.

`decide` is pure: no network, no memory, and the time is given. The same state always gives the same
step, so a controller that was killed goes on where it was; a step's answers, which it loses, are
asked again. What it has to remember is in annotations of the stable track's object:

    espalier.dev/last-good      version that last became ready everywhere
    espalier.dev/failed         promotion whose roll-out failed, as VERSION@WHEN
    espalier.dev/failed-reason  and why
    espalier.dev/canary         promotion whose canary is under way, as VERSION@WHEN
    espalier.dev/canary-step    its step: 0 before it gets any traffic, then 1, 2, ...
    espalier.dev/canary-since   when that step's share was reached (UTC); absent until then
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple, Self, TypeAlias

from espalier.cluster.objects.names import MODEL_VERSION_ANNOTATION, K8sObject
from espalier.cluster.objects.serving import CONTAINER, MODEL_VARIABLE, version_reference
from espalier.config import CanaryConfig
from espalier.registry.model import CHAMPION_SINCE, GATE_REASON, ModelVersion
from espalier.serving.score import ServedScore, exact_match_shortfall, missing_answers, shortfall

LAST_GOOD = "espalier.dev/last-good"
FAILED = "espalier.dev/failed"
FAILED_REASON = "espalier.dev/failed-reason"
CANARY = "espalier.dev/canary"
CANARY_STEP = "espalier.dev/canary-step"
CANARY_SINCE = "espalier.dev/canary-since"


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
    """What the controller wrote into the Deployment's annotations."""

    last_good: str | None = None
    failed: str | None = None
    """A `Champion.promotion`."""
    failed_reason: str | None = None
    canary: str | None = None
    """The `Champion.promotion` whose canary is under way."""
    step: int = 0
    since: str | None = None
    """When the step's share was reached, in UTC, ISO 8601."""

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> Self:
        """Read the annotations of a Deployment; a step that is no number is the first."""
        step = annotations.get(CANARY_STEP, "")
        return cls(
            last_good=annotations.get(LAST_GOOD) or None,
            failed=annotations.get(FAILED) or None,
            failed_reason=annotations.get(FAILED_REASON) or None,
            canary=annotations.get(CANARY) or None,
            step=int(step) if step.isdecimal() else 0,
            since=annotations.get(CANARY_SINCE) or None,
        )

    @property
    def annotations(self) -> dict[str, str | None]:
        """For a merge patch; None removes an annotation."""
        return {
            LAST_GOOD: self.last_good,
            FAILED: self.failed,
            FAILED_REASON: self.failed_reason,
            CANARY: self.canary,
            CANARY_STEP: str(self.step) if self.canary else None,
            CANARY_SINCE: self.since if self.canary else None,
        }

    def with_failure(self, promotion: str, reason: str) -> Self:
        """The memory after the roll-out of a promotion failed."""
        return replace(self.without_canary(), failed=promotion, failed_reason=reason)

    def with_success(self, version: str) -> Self:
        """The memory after a version became ready; an earlier failure may be tried again."""
        return replace(self.without_canary(), last_good=version, failed=None, failed_reason=None)

    def with_canary(self, promotion: str, step: int, since: datetime | None = None) -> Self:
        """The memory of a canary at a step; `since` when its share was reached."""
        moment = since.isoformat(timespec="seconds") if since else None
        return replace(self, canary=promotion, step=step, since=moment)

    def without_canary(self) -> Self:
        """The memory after a canary ended."""
        return replace(self, canary=None, step=0, since=None)

    def elapsed_s(self, now: datetime) -> float | None:
        """How long the step's share is there; None where it is not, or its time was not written."""
        try:
            since = datetime.fromisoformat(self.since or "")
        except ValueError:
            return None
        return (now - (since if since.tzinfo else since.replace(tzinfo=UTC))).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryTrack:
    """The canary at one moment, read from its objects alone."""

    asked: str | None = None
    """Version of its pods, if it has any."""
    progress: RolloutProgress = RolloutProgress.ROLLING
    """Of the pods that its weight needs."""
    reason: str = ""
    """Why it is stuck."""
    has_pods: bool = False
    """Whether pods are asked for."""
    has_traffic: bool = False
    """Whether traffic is led to it, as soon as it has pods that can answer."""
    weight: float | None = None
    """Share of the traffic that was last asked for; None where it never was."""
    share: float = 0.0
    """Share that it has: of requests with a gateway; by a Service, of pods, so of connections."""
    is_routed: bool = False
    """Whether traffic is led as the weight asks for; 0 and 1 are exact."""


NO_CANARY = CanaryTrack()


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
    canary: CanaryTrack = NO_CANARY

    @classmethod
    def read(cls, deployment: K8sObject, model: str, canary: CanaryTrack = NO_CANARY) -> Self:
        """Read the state of a Deployment that serves versions of `model`."""
        seen = rollout_progress(deployment)
        return cls(
            uid=deployment["metadata"].get("uid", ""),
            resource_version=deployment["metadata"].get("resourceVersion", ""),
            asked=asked_version(deployment, model),
            progress=seen.progress,
            reason=seen.reason,
            memory=RolloutMemory.read(deployment["metadata"].get("annotations") or {}),
            canary=canary,
        )


class Seen(NamedTuple):
    """How far a roll-out is, and why it is stuck."""

    progress: RolloutProgress
    reason: str = ""


def asked_version(deployment: K8sObject, model: str) -> str | None:
    """The version asked for; None where annotation and environment differ, as after an edit."""
    template = deployment["spec"]["template"]
    version = (template["metadata"].get("annotations") or {}).get(MODEL_VERSION_ANNOTATION)
    expected = {"name": MODEL_VARIABLE, "value": version_reference(model, version or "")}
    for container in template["spec"]["containers"]:
        if container["name"] == CONTAINER and expected in (container.get("env") or []):
            return version
    return None


def rollout_progress(deployment: K8sObject) -> Seen:
    """As `kubectl rollout status` computes it; a Deployment without replicas is never ready."""
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
        return Seen(RolloutProgress.ROLLING)
    for condition in status.get("conditions") or []:
        if condition.get("reason") == "ProgressDeadlineExceeded":
            return Seen(RolloutProgress.STUCK, condition.get("message", "its deadline passed"))
    counts = [status.get(name, 0) for name in ("updatedReplicas", "replicas", "availableReplicas")]
    is_ready = wanted > 0 and all(count == wanted for count in counts)
    return Seen(RolloutProgress.READY if is_ready else RolloutProgress.ROLLING)


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
    """Have the stable track serve another version."""

    version: str
    why: str


@dataclass(frozen=True, slots=True)
class CheckHealth:
    """All pods are ready: ask the track whether it answers as this version."""

    champion: Champion
    of_canary: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """The promotion's roll-out failed; the next step rolls back."""

    champion: Champion
    reason: str


@dataclass(frozen=True, slots=True)
class EnterStep:
    """Remember that the canary of a promotion is at a step; `weight` is that step's."""

    champion: Champion
    step: int
    weight: float
    is_reached: bool = False
    """Whether its share is there, so that its time begins."""


@dataclass(frozen=True, slots=True)
class Weigh:
    """Give the canary's version a share of the traffic, with the pods for it."""

    champion: Champion
    weight: float


@dataclass(frozen=True, slots=True)
class Retreat:
    """Lead all traffic to the stable track; the canary keeps its pods for what they have begun."""

    why: str


@dataclass(frozen=True, slots=True)
class EndCanary:
    """Take the canary's pods away, and forget it."""

    why: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Ask both tracks the next questions."""

    champion: Champion
    step: int
    weight: float


Decision: TypeAlias = (
    Wait | Refuse | Roll | CheckHealth | Fail | EnterStep | Weigh | Retreat | EndCanary | Measure
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """By what a canary is judged."""

    config: CanaryConfig
    now: datetime
    score: ServedScore | None = None
    """Of the present step; None where nothing was asked since the controller started."""
    graded: int = 0
    """Questions with accepted answers."""

    def weight(self, step: int) -> float:
        """Share of the traffic at a step; a step beyond the last is the last."""
        return (0.0, *self.config.steps)[min(step, len(self.config.steps))]


def decide(
    champion: Champion | None, state: RolloutState, judging: Judging | None = None
) -> Decision:
    """The next thing to do towards serving the champion.

    Args:
        champion: where the alias points; None where there is none.
        state: of what serves.
        judging: by what a canary is judged; None rolls out at once.
    """
    memory = state.memory
    if champion is None:
        # what is served stays, but nobody stands behind a canary any more
        why = "there is no champion"
        return _ended_canary(state, why) or Wait(why)
    if not champion.may_lead:
        # what is served stays, but a canary was on its way to a promotion that is over
        return _ended_canary(state, "its promotion is over") or Refuse(champion)
    if memory.failed == champion.promotion:
        return _after_failure(champion, state)
    if state.asked == champion.version:
        return _stable(champion, state)
    if not _has_canary(champion, state, judging):
        return Roll(champion.version, f"champion is version {champion.version}")
    assert judging is not None, "a canary is judged"
    if memory.canary == champion.promotion:
        return _canary(champion, state, judging)
    if memory.last_good is not None and state.asked != memory.last_good:
        # the version before was being rolled to after its canary
        return Roll(memory.last_good, f"champion is version {champion.version} now")
    return _ended_canary(state, f"champion is version {champion.version} now") or EnterStep(
        champion, 0, 0.0
    )


def _has_canary(champion: Champion, state: RolloutState, judging: Judging | None) -> bool:
    """Whether the version gets shares of the traffic: where another one is served, and was good."""
    if judging is None or not judging.config.steps:
        return False
    memory = state.memory
    return memory.canary is not None or (
        memory.last_good is not None and state.asked == memory.last_good
    )


def _stable(champion: Champion, state: RolloutState) -> Decision:
    """The stable track has the champion's version, or is being rolled to it."""
    memory = state.memory
    was_good = memory.last_good == champion.version
    ending = _ended_canary(state, f"version {champion.version} is served") if was_good else None
    if ending is not None:
        return ending
    if state.progress is RolloutProgress.ROLLING:
        return Wait(f"version {champion.version} is being rolled out")
    if state.progress is RolloutProgress.STUCK:
        # a version that was ready before is not to blame: something else was changed
        return Wait(f"stuck: {state.reason}") if was_good else Fail(champion, state.reason)
    if not was_good or memory.failed is not None:
        return CheckHealth(champion)
    return Wait(f"version {champion.version} is served")


def _canary(champion: Champion, state: RolloutState, judging: Judging) -> Decision:
    """The promotion's canary is under way."""
    memory, canary = state.memory, state.canary
    step, weight = memory.step, judging.weight(memory.step)
    if canary.asked != champion.version or canary.weight != weight or not canary.has_pods:
        return Weigh(champion, weight)
    if canary.progress is RolloutProgress.STUCK:
        return Fail(champion, canary.reason)
    if canary.progress is RolloutProgress.ROLLING:
        return Wait(f"the canary of version {champion.version} is being rolled out")
    if not canary.is_routed:
        return Weigh(champion, weight)
    if step == 0:
        return CheckHealth(champion, of_canary=True)
    elapsed_s = memory.elapsed_s(judging.now)
    if elapsed_s is None:
        return EnterStep(champion, step, weight, is_reached=True)
    return _judged(champion, state, judging, elapsed_s)


def _judged(
    champion: Champion, state: RolloutState, judging: Judging, elapsed_s: float
) -> Decision:
    """The canary has its share: it goes back, goes on, or is asked more."""
    step, score, config = state.memory.step, judging.score, judging.config
    weight = judging.weight(step)
    if score is None:
        return Measure(champion, step, weight)
    if reason := shortfall(score, config):
        return Fail(champion, f"at a share of {weight:g}: {reason}")
    if missing_answers(score, config, graded=judging.graded):
        return Measure(champion, step, weight)
    if reason := exact_match_shortfall(score, config):
        return Fail(champion, f"at a share of {weight:g}: {reason}")
    if elapsed_s < config.step_s:
        return Measure(champion, step, weight)
    if step < len(config.steps):
        return EnterStep(champion, step + 1, judging.weight(step + 1))
    return Roll(champion.version, f"version {champion.version} passed its canary: {score}")


def _ended_canary(state: RolloutState, why: str) -> Decision | None:
    """The next thing to do to be rid of a canary; None where there is none."""
    if state.canary.share == 1 and state.progress is not RolloutProgress.READY:
        # nobody would answer: the stable track comes back first
        return Wait(f"version {state.asked} is not ready to answer in the canary's place")
    if state.canary.has_traffic:
        return Retreat(why)
    if state.canary.has_pods or state.memory.canary is not None:
        return EndCanary(why)
    return None


def _after_failure(champion: Champion, state: RolloutState) -> Decision:
    """Go back to the last good version; stay there until another promotion."""
    good = state.memory.last_good
    if good is None or good == champion.version:
        return Wait(f"version {champion.version} failed, and none was good before it")
    why = f"version {champion.version} failed: {state.memory.failed_reason}"
    if state.asked != good:
        return Roll(good, why)
    return _ended_canary(state, why) or Wait(
        f"version {good} is served, because {champion.version} failed"
    )

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
    espalier.dev/canary-entered when that step was entered (UTC)
    espalier.dev/canary-since   when its share was reached (UTC); absent until then

No step takes longer than `serving.canary.max_step_s`, whatever holds it up: `_canary` says Fail.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple, Self, TypeAlias

from espalier.cluster.objects.names import MODEL_VERSION_ANNOTATION, K8sObject
from espalier.cluster.objects.serving import CONTAINER, MODEL_VARIABLE, version_reference
from espalier.config import CanaryConfig
from espalier.registry.model import CHAMPION_SINCE, GATE_REASON, ModelVersion
from espalier.serving.score import (
    ServedScore,
    exact_match_shortfall,
    missing_answers,
    shortfall,
)

LAST_GOOD = "espalier.dev/last-good"
FAILED = "espalier.dev/failed"
FAILED_REASON = "espalier.dev/failed-reason"
CANARY = "espalier.dev/canary"
CANARY_STEP = "espalier.dev/canary-step"
CANARY_ENTERED = "espalier.dev/canary-entered"
CANARY_SINCE = "espalier.dev/canary-since"
STATE_TAG = "espalier.serving"
REASON_TAG = "espalier.serving_reason"
"""Tags of a version: what became of it when it was to be served, and why."""


class ServingTag(enum.StrEnum):
    """Values of STATE_TAG."""

    SERVED = "served"
    FAILED = "failed"
    REFUSED = "refused"
    ON_TRIAL = "canary"


class Told(NamedTuple):
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
    told: Told = field(default_factory=Told)

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
            told=Told(version.tags.get(STATE_TAG, ""), version.tags.get(REASON_TAG, "")),
        )

    @classmethod
    def remembered(cls, model: str, memory: RolloutMemory) -> Self | None:
        """What annotations tell of the promotion that is under way or failed, without MLflow.

        It is enough to judge a canary and to take it back; giving it more needs the version itself.
        """
        number, _, since = (memory.canary or memory.failed or "").partition("@")
        if not number:
            return None
        gate = "not read: MLflow is away"
        return cls(
            model=model, version=number, policy_digest="", may_lead=True, gate=gate, since=since
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
    entered: str | None = None
    """When the step was entered, in UTC, ISO 8601."""
    since: str | None = None
    """When its share was reached."""

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
            entered=annotations.get(CANARY_ENTERED) or None,
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
            CANARY_ENTERED: self.entered if self.canary else None,
            CANARY_SINCE: self.since if self.canary else None,
        }

    def with_failure(self, promotion: str, reason: str) -> Self:
        """The memory after the roll-out of a promotion failed."""
        return replace(self.without_canary(), failed=promotion, failed_reason=reason)

    def with_success(self, version: str) -> Self:
        """The memory after a version became ready; an earlier failure may be tried again."""
        return replace(self.without_canary(), last_good=version, failed=None, failed_reason=None)

    def with_canary(self, promotion: str, step: int, entered: datetime) -> Self:
        """The memory of a canary that enters a step."""
        moment = entered.isoformat(timespec="seconds")
        return replace(self, canary=promotion, step=step, entered=moment, since=None)

    def with_share(self, reached: datetime) -> Self:
        """The memory of a canary that has its step's share."""
        return replace(self, since=reached.isoformat(timespec="seconds"))

    def without_canary(self) -> Self:
        """The memory after a canary ended."""
        return replace(self, canary=None, step=0, entered=None, since=None)

    def entered_s(self, now: datetime) -> float | None:
        """Seconds since the step was entered; None where that was not written."""
        return _seconds_since(self.entered, now)

    def elapsed_s(self, now: datetime) -> float | None:
        """Seconds that the step's share is there; None where it is not, or that was not written."""
        return _seconds_since(self.since, now)


def _seconds_since(written: str | None, now: datetime) -> float | None:
    try:
        moment = datetime.fromisoformat(written or "")
    except ValueError:
        return None
    return (now - (moment if moment.tzinfo else moment.replace(tzinfo=UTC))).total_seconds()


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
    can_answer: bool = False
    """See `Seen.can_answer`."""

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
            can_answer=seen.can_answer,
        )


class Seen(NamedTuple):
    """How far a roll-out is, and why it is stuck."""

    progress: RolloutProgress
    reason: str = ""
    can_answer: bool = False
    """Whether all of its pods have the version asked for, and half of those wanted answer."""


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
    counts = [status.get(name, 0) for name in ("updatedReplicas", "replicas", "availableReplicas")]
    updated, there, available = counts
    can_answer = updated == there and 0 < wanted <= 2 * available
    for condition in status.get("conditions") or []:
        if condition.get("reason") == "ProgressDeadlineExceeded":
            why = condition.get("message", "its deadline passed")
            return Seen(RolloutProgress.STUCK, why, can_answer)
    is_ready = wanted > 0 and all(count == wanted for count in counts)
    progress = RolloutProgress.READY if is_ready else RolloutProgress.ROLLING
    return Seen(progress, can_answer=can_answer)


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


@dataclass(frozen=True, slots=True)
class Mark:
    """Tag the version with what became of it: its tags say something else."""

    champion: Champion
    told: Told


Decision: TypeAlias = (
    Wait
    | Refuse
    | Roll
    | CheckHealth
    | Fail
    | EnterStep
    | Weigh
    | Retreat
    | EndCanary
    | Measure
    | Mark
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """By what a canary is judged."""

    config: CanaryConfig
    now: datetime
    score: ServedScore | None = None
    """Of the present step; None where nothing was asked since the controller started."""
    graded: int = 0
    """Questions with accepted answers that count."""

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
        return _taken_back(state, why) or Wait(why)
    if not champion.may_lead:
        # what is served stays, but a canary was on its way to a promotion that is over
        return _taken_back(state, "its promotion is over") or Refuse(champion)
    if memory.failed == champion.promotion:
        return _after_failure(champion, state)
    if state.asked == champion.version:
        return _stable(champion, state, judging)
    if not _has_canary(champion, state, judging):
        return Roll(champion.version, f"champion is version {champion.version}")
    assert judging is not None, "a canary is judged"
    if memory.canary == champion.promotion:
        return _canary(champion, state, judging)
    why = f"champion is version {champion.version} now"
    return _taken_back(state, why) or EnterStep(champion, 0, 0.0)


def _has_canary(champion: Champion, state: RolloutState, judging: Judging | None) -> bool:
    """Whether the version gets shares of the traffic: where another one is served, and was good."""
    if judging is None or not judging.config.steps:
        return False
    memory = state.memory
    return memory.canary is not None or (
        memory.last_good is not None and state.asked == memory.last_good
    )


def _stable(champion: Champion, state: RolloutState, judging: Judging | None) -> Decision:
    """The stable track has the champion's version, or is being rolled to it."""
    memory = state.memory
    was_good = memory.last_good == champion.version
    ending = _ended_canary(state, f"version {champion.version} is served") if was_good else None
    if ending is not None:
        return ending
    if state.progress is RolloutProgress.ROLLING:
        if judging is not None and memory.canary == champion.promotion:
            return _rolling_behind_canary(champion, state, judging)
        return Wait(f"version {champion.version} is being rolled out")
    if state.progress is RolloutProgress.STUCK:
        # a version that was ready before is not to blame: something else was changed
        return Wait(f"stuck: {state.reason}") if was_good else Fail(champion, state.reason)
    if not was_good or memory.failed is not None:
        return CheckHealth(champion)
    why = f"version {champion.version} is served"
    return _told(champion, Told(ServingTag.SERVED, champion.gate), why)


def _rolling_behind_canary(champion: Champion, state: RolloutState, judging: Judging) -> Decision:
    """The stable track rolls while the canary answers everything: a step after the last one."""
    step, config = len(judging.config.steps) + 1, judging.config
    entered_s = state.memory.entered_s(judging.now)
    if state.memory.step != step or entered_s is None:
        return EnterStep(champion, step, 1.0)
    if entered_s >= config.max_step_s:
        return Fail(
            champion,
            f"after its canary it was not ready everywhere within "
            f"serving.canary.max_step_s={config.max_step_s:g} s",
        )
    return Wait(f"version {champion.version} is being rolled out")


class _Next(NamedTuple):
    """The next thing to do at a step of a canary."""

    decision: Decision
    missing: str = ""
    """What the step is not decided without; empty where it is decided."""


def _canary(champion: Champion, state: RolloutState, judging: Judging) -> Decision:
    """The promotion's canary is under way: go on, or fail where a step is not decided in time."""
    step, config = state.memory.step, judging.config
    entered_s = state.memory.entered_s(judging.now)
    if entered_s is None:
        return EnterStep(champion, step, judging.weight(step))
    decision, missing = _next_at_step(champion, state, judging)
    if missing and entered_s >= config.max_step_s:
        return Fail(
            champion,
            f"step {step} of {len(config.steps)} was not decided within "
            f"serving.canary.max_step_s={config.max_step_s:g} s: {missing}",
        )
    return decision


def _next_at_step(champion: Champion, state: RolloutState, judging: Judging) -> _Next:
    memory, canary = state.memory, state.canary
    step, weight = memory.step, judging.weight(memory.step)
    elapsed_s = memory.elapsed_s(judging.now)
    if canary.asked != champion.version or canary.weight != weight or not canary.has_pods:
        return _Next(Weigh(champion, weight), "its number of pods was not the share's")
    if canary.progress is RolloutProgress.STUCK:
        return _Next(Fail(champion, canary.reason))
    # with all of the traffic it is asked without some of its pods too: nobody answers for it
    is_alone = canary.share == 1 and elapsed_s is not None
    if canary.progress is RolloutProgress.ROLLING and not is_alone:
        what = f"the canary of version {champion.version} is being rolled out"
        return _Next(Wait(what), "its pods were not all ready")
    if not canary.is_routed:
        return _Next(Weigh(champion, weight), f"a share of {weight:g} was not led to it")
    if step == 0:
        return _Next(CheckHealth(champion, of_canary=True), "it gave no token")
    if elapsed_s is None:
        reached = EnterStep(champion, step, weight, is_reached=True)
        return _Next(reached, "its pods were ready too late")
    return _judged(champion, step, judging, elapsed_s)


def _judged(champion: Champion, step: int, judging: Judging, elapsed_s: float) -> _Next:
    """The canary has its share: it goes back, goes on, or is asked more."""
    score, config, weight = judging.score, judging.config, judging.weight(step)
    measure = Measure(champion, step, weight)
    if score is None:
        return _Next(measure, "no question was asked since the controller started")
    if reason := shortfall(score, config):
        return _Next(Fail(champion, f"at a share of {weight:g}: {reason}"))
    if missing := missing_answers(score, config, graded=judging.graded):
        return _Next(measure, missing)
    if reason := exact_match_shortfall(score, config):
        return _Next(Fail(champion, f"at a share of {weight:g}: {reason}"))
    if elapsed_s < config.step_s:
        return _Next(measure, f"it had its share for {elapsed_s:.0f} s of {config.step_s:g}")
    if step < len(config.steps):
        return _Next(EnterStep(champion, step + 1, judging.weight(step + 1)))
    passed = f"version {champion.version} passed its canary: {score}"
    return _Next(Roll(champion.version, passed))


def _taken_back(state: RolloutState, why: str) -> Decision | None:
    """The next thing to do to take a canary back; None where there is none.

    Where the stable track was being rolled to its version already, the good one comes back first.
    """
    memory = state.memory
    if memory.canary is not None and memory.last_good not in (None, state.asked):
        return Roll(memory.last_good, why)
    return _ended_canary(state, why)


def _ended_canary(state: RolloutState, why: str) -> Decision | None:
    """The next thing to do to be rid of a canary; None where there is none."""
    is_there = state.progress is RolloutProgress.READY or state.can_answer
    if state.canary.share == 1 and not is_there:
        # nobody would answer, or too few: the stable track comes back first
        return Wait(f"version {state.asked} is not ready to answer in the canary's place")
    if state.canary.has_traffic:
        return Retreat(why)
    if state.canary.has_pods or state.memory.canary is not None:
        return EndCanary(why)
    return None


def _after_failure(champion: Champion, state: RolloutState) -> Decision:
    """Go back to the last good version; stay there until another promotion."""
    good = state.memory.last_good
    failed = Told(ServingTag.FAILED, state.memory.failed_reason or "")
    if good is None or good == champion.version:
        why = f"version {champion.version} failed, and none was good before it"
        return _told(champion, failed, why)
    why = f"version {champion.version} failed: {state.memory.failed_reason}"
    if state.asked != good:
        return Roll(good, why)
    return _ended_canary(state, why) or _told(
        champion, failed, f"version {good} is served, because {champion.version} failed"
    )


def _told(champion: Champion, told: Told, why: str) -> Decision:
    """Nothing to do but to say so in the version's tags, where MLflow was away when it happened."""
    return Wait(why) if champion.told == told else Mark(champion, told)

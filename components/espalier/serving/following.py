"""Makes what serves follow the alias `champion`: observe, decide, act, repeat.

Where a version falls short the alias stays: promote, rollback and their records are a person's or
the gate's. The version's tags say what became of it, and `espalier rollback` moves the alias.
"""

from __future__ import annotations

import logging
from typing import Any

import httpx2

from espalier.records import RegistryError
from espalier.registry.model import CHAMPION, RegisteredModel
from espalier.serving.asking import Address
from espalier.serving.controller_metrics import ROLLED_BACK, ControllerMetrics
from espalier.serving.decision import (
    REASON_TAG,
    STATE_TAG,
    Champion,
    CheckHealth,
    Decision,
    EndCanary,
    EnterStep,
    Fail,
    Mark,
    Measure,
    Refuse,
    Retreat,
    Roll,
    RolloutState,
    ServingTag,
    Told,
    Wait,
    Weigh,
    decide,
)
from espalier.serving.judging import CanaryJudge
from espalier.serving.tracks import ServingTracks

SCORE_TAG = "espalier.serving_score"
"""Tag of a version that was a canary: the figures of its last step."""
_PROBE_TIMEOUT_S = 20.0
_MAX_QUOTED = 200
"""Characters of a server's answer that a fault quotes."""
_MAX_REASON = 2000
"""Characters of why a version failed: MLflow refuses a tag of more than 5,000."""

log = logging.getLogger(__name__)


class VersionSource:
    """A model's champion, read and tagged."""

    def __init__(self, uri: str, model: str) -> None:
        self.name = model
        self._uri = uri
        self._model: RegisteredModel | None = None

    def champion(self) -> Champion | None:
        """The version that the alias points at now, whether it may lead or not.

        Raises:
            RegistryError: MLflow is away.
        """
        found = self._opened().find(CHAMPION)
        return None if found is None else Champion.of(found)

    def version(self, number: str) -> Champion | None:
        """A version by its number; None where it was deleted.

        Raises:
            RegistryError: MLflow is away.
        """
        found = self._opened().find(number)
        return None if found is None else Champion.of(found)

    def mark(self, number: str, told: Told, score: str = "") -> None:
        """Tag a version with what became of it; tags that are there already are not written again.

        Raises:
            RegistryError: MLflow is away.
        """
        found = self._opened().find(number)
        tags = {STATE_TAG: str(told.state), REASON_TAG: told.reason}
        tags |= {SCORE_TAG: score} if score else {}
        if found is not None and any(found.tags.get(key) != value for key, value in tags.items()):
            self._opened().tag(found, tags)

    def _opened(self) -> RegisteredModel:
        # opened late: a server that is away when the controller starts is waited for
        if self._model is None:
            self._model = RegisteredModel.open(self._uri, self.name)
        return self._model


class HealthProbe:
    """Asks an OpenAI-compatible server for one token of a version.

    A Deployment's servers have to have the version among the names that they serve, as
    `models:/NAME/3`: vLLM is given it by --served-model-name $(ESPALIER_MODEL).
    """

    def __init__(self, key: str | None = None, *, verify: bool = True) -> None:
        """Ask with an API key where servers want one; `verify` has certificates checked."""
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._verify = verify

    def fault(self, address: Address) -> str | None:
        """What is wrong; None where a token came."""
        url, name = address.url.rstrip("/"), address.name
        asked = {"model": name, "prompt": [0], "max_tokens": 1, "temperature": 0.0}
        try:
            answer = httpx2.post(
                f"{url}/v1/completions",
                json=asked,
                headers=self._headers,
                timeout=_PROBE_TIMEOUT_S,
                trust_env=False,
                verify=self._verify,
            )
        except httpx2.HTTPError as error:
            return f"{url} does not answer ({type(error).__name__})"
        if answer.status_code != httpx2.codes.OK:
            said = answer.text[:_MAX_QUOTED]
            return f"{url} answers {name} with HTTP {answer.status_code}: {said}"
        return None if _has_token(answer) else f"{url} answers {name} with no token"


def _has_token(answer: httpx2.Response) -> bool:
    try:
        body: Any = answer.json()
        return int(body["usage"]["completion_tokens"]) == 1
    except (ValueError, KeyError, TypeError):
        return False


class Follower:
    """Makes what serves follow the alias `champion` of one model.

    Everything is announced before it is done and remembered: what fails half-way is announced and
    done again. What became of a version is remembered before its tags say so: a canary goes back
    while MLflow is away, and is marked later.
    """

    def __init__(
        self,
        registry: VersionSource,
        tracks: ServingTracks,
        probe: HealthProbe,
        judge: CanaryJudge,
        *,
        health_attempts: int,
        metrics: ControllerMetrics,
    ) -> None:
        """Follow.

        Args:
            registry: of the model.
            tracks: that follow.
            probe: decides whether a roll-out succeeded.
            judge: of canaries.
            health_attempts: probes in a row that must fail before the version counts as failed.
            metrics: shown what is seen and done.
        """
        self._registry = registry
        self._tracks = tracks
        self._probe = probe
        self._judge = judge
        self._health_attempts = health_attempts
        self._metrics = metrics
        self._faults_in_a_row = 0
        self._last_logged = ""
        self._last_refused = ""
        self._champion: str | None = None
        self._seen: Champion | None = None
        self._has_looked = False

    def step(self) -> Decision:
        """Observe, decide and act once.

        While MLflow is away a canary is judged, and taken back, by what was known of the champion.

        Raises:
            ServingError: the cluster is away, or refuses; nothing is lost by trying again.
            RegistryError: MLflow is away, and the next thing to do waits for it.
        """
        away = self._look()
        state = self._tracks.read()
        champion = self._seen
        if away is not None and not self._has_looked:
            champion = Champion.remembered(self._registry.name, state.memory)
            if champion is None:
                raise away
        judging = self._judge.judging(state.memory)
        self._champion = None if champion is None else champion.version
        weight = judging.weight(state.memory.step)
        self._metrics.show(self._champion, state, weight, judging.score)
        decision = decide(champion, state, judging)
        if away is not None:
            if not _goes_without_registry(decision):
                raise away
            log.warning("going on with the last known champion: %s", away)
        if not isinstance(decision, CheckHealth):
            self._faults_in_a_row = 0
        self._act(decision, state)
        return decision

    def _look(self) -> RegistryError | None:
        """Look at the alias; why that cannot be done."""
        try:
            self._seen = self._registry.champion()
        except RegistryError as error:
            return error
        self._has_looked = True
        return None

    def _act(self, decision: Decision, state: RolloutState) -> None:
        match decision:
            case Wait(why):
                self._log(why)
            case Refuse(refused):
                self._refuse(refused, state)
            case Roll(version, why):
                self._roll(version, why, state)
            case CheckHealth():
                self._check_health(decision, state)
            case Fail(failed, reason):
                self._fail(failed, reason, state)
            case Mark(marked, told):
                self._mark(marked, told)
            case _:
                self._act_on_canary(decision, state)

    def _act_on_canary(
        self,
        decision: EnterStep | Weigh | Measure | Retreat | EndCanary,
        state: RolloutState,
    ) -> None:
        match decision:
            case EnterStep():
                self._enter(decision, state)
            case Weigh(candidate, weight):
                self._weigh(candidate, weight, state)
            case Measure():
                self._measure(decision, state)
            case Retreat(why):
                self._retreat(why, state)
            case EndCanary(why):
                self._end_canary(why, state)

    def _refuse(self, champion: Champion, state: RolloutState) -> None:
        note = (
            f"{champion.model}/{champion.version} is @champion and is not served: it carries "
            f"neither a gate pass nor a forced promotion's reason (gate: {champion.gate})"
        )
        if note != self._last_refused:
            self._log(note)
            self._tracks.record("Refused", note, state, warns=True)
            why = "no gate pass and no forced reason"
            self._registry.mark(champion.version, Told(ServingTag.REFUSED, why))
            self._metrics.count_rollout(ServingTag.REFUSED)
            self._last_refused = note

    def _may_still_lead(self, version: str) -> Champion | None:
        """The version, if it may lead at this moment; an earlier one is checked as well."""
        target = self._registry.version(version)
        if target is None or not target.may_lead:
            self._log(f"version {version} is not rolled to: it may not lead any more, or is gone")
            return None
        return target

    def _roll(self, version: str, why: str, state: RolloutState) -> None:
        target = self._may_still_lead(version)
        if target is None:
            return
        note = f"rolling {self._registry.name} from {state.asked or 'nothing'} to {version}: {why}"
        self._log(note)
        self._tracks.record("Rolling", note, state, warns=False)
        self._tracks.roll(target)
        self._metrics.count_rollout("rolling" if version == self._champion else ROLLED_BACK)

    def _enter(self, decision: EnterStep, state: RolloutState) -> None:
        champion, step = decision.champion, decision.step
        steps = len(self._judge.config.steps)
        share = f"step {step} of {steps}, a share of {decision.weight:g}"
        if step > steps:
            share = "it answers everything while the stable track rolls"
        if decision.is_reached:
            self._log(f"canary {champion.version} is at {share}: it has {state.canary.share:.3g}")
            self._tracks.remember(state.memory.with_share(self._judge.now()), state)
            return
        passed = f"; before: {self._judge.score}" if step > 1 and self._judge.score else ""
        what = share if step else "it starts without traffic"
        note = f"canary of {champion.model}/{champion.version}: {what}{passed}"
        # first: it gets no more while MLflow is away
        self._registry.mark(champion.version, Told(ServingTag.ON_TRIAL, what))
        self._log(note)
        self._tracks.record("Canary", note, state, warns=False)
        memory = state.memory.with_canary(champion.promotion, step, self._judge.now())
        self._tracks.remember(memory, state)
        if step == 0:
            self._metrics.count_rollout(ServingTag.ON_TRIAL)

    def _weigh(self, champion: Champion, weight: float, state: RolloutState) -> None:
        target = self._may_still_lead(champion.version)
        if target is not None:
            self._log(f"giving canary {champion.version} a share of {weight:g}")
            self._tracks.weigh(target, weight, state)

    def _measure(self, decision: Measure, state: RolloutState) -> None:
        """Ask both; what the stable track does not answer counts for nobody."""
        former = self._tracks.address(state.asked or "", of_canary=False)
        canary = self._tracks.address(decision.champion.version, of_canary=True)
        score = self._judge.ask(state.memory, former, canary)
        log.info("canary %s, share %g: %s", decision.champion.version, decision.weight, score)

    def _retreat(self, why: str, state: RolloutState) -> None:
        note = f"all traffic goes to version {state.asked}: {why}"
        self._log(note)
        self._tracks.record("Retreating", note, state, warns=False)
        self._tracks.retreat()

    def _end_canary(self, why: str, state: RolloutState) -> None:
        self._log(f"the canary ends: {why}")
        self._tracks.end_canary()
        if state.memory.canary is not None:
            self._tracks.remember(state.memory.without_canary(), state)

    def _check_health(self, decision: CheckHealth, state: RolloutState) -> None:
        champion, of_canary = decision.champion, decision.of_canary
        fault = self._probe.fault(self._tracks.address(champion.version, of_canary=of_canary))
        if fault is not None:
            self._faults_in_a_row += 1
            self._log(f"probe {self._faults_in_a_row} of {self._health_attempts}: {fault}")
            if self._faults_in_a_row >= self._health_attempts:
                self._faults_in_a_row = 0
                self._fail(champion, fault, state)
            return
        self._faults_in_a_row = 0
        if of_canary:
            weight = self._judge.judging(state.memory).weight(1)
            self._enter(EnterStep(champion, 1, weight), state)
            return
        note = f"{champion.model}/{champion.version} is served ({champion.gate})"
        self._log(note)
        self._tracks.record("Served", note, state, warns=False)
        self._tracks.remember(state.memory.with_success(champion.version), state)
        self._metrics.count_rollout(ServingTag.SERVED)
        self._mark(champion, Told(ServingTag.SERVED, champion.gate))

    def _fail(self, champion: Champion, reason: str, state: RolloutState) -> None:
        was_canary = state.memory.canary == champion.promotion
        pods = self._tracks.faults(champion.version)
        why = (f"{reason} ({pods})" if pods else reason)[:_MAX_REASON]
        what = "went back" if was_canary else "could not be served"
        note = f"{champion.model}/{champion.version} {what}: {why}"
        self._log(note)
        event = "CanaryFailed" if was_canary else "RolloutFailed"
        self._tracks.record(event, note, state, warns=True)
        self._tracks.remember(state.memory.with_failure(champion.promotion, why), state)
        self._metrics.count_rollout("went_back" if was_canary else ServingTag.FAILED)
        self._mark(champion, Told(ServingTag.FAILED, why))

    def _mark(self, champion: Champion, told: Told) -> None:
        """Say in the version's tags what was remembered; where that fails `decide` asks again."""
        score = self._judge.score_of(champion.promotion)
        self._registry.mark(champion.version, told, "" if score is None else str(score))

    def _log(self, what: str) -> None:
        """Log what differs from the last line."""
        if what != self._last_logged:
            self._last_logged = what
            log.info("%s", what)


def _goes_without_registry(decision: Decision) -> bool:
    """Whether it gives a version no more than it has: MLflow may say something else by now."""
    if isinstance(decision, EnterStep):
        return decision.is_reached
    return isinstance(decision, Measure | Fail | Retreat | EndCanary | CheckHealth)

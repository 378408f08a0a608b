"""Makes what serves follow the alias `champion`: observe, decide, act, repeat.

Where a version fails the alias stays: promote, rollback and their records are a person's or the
gate's. The version's tags say what became of it, and `espalier rollback` moves the alias.
"""

from __future__ import annotations

import logging
from typing import Any

import httpx2

from espalier.registry.model import CHAMPION, RegisteredModel
from espalier.serving.controller_metrics import ROLLED_BACK, ROLLING, ControllerMetrics
from espalier.serving.decision import (
    REASON_TAG,
    STATE_TAG,
    Champion,
    CheckHealth,
    Decision,
    Fail,
    Mark,
    Refuse,
    Roll,
    RollBack,
    RolloutState,
    ServingTag,
    VersionTags,
    Wait,
    decide,
)
from espalier.serving.workload import Address, Workload

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

    def mark(self, number: str, told: VersionTags) -> None:
        """Tag a version with what became of it; tags that are there already are not written again.

        Raises:
            RegistryError: MLflow is away.
        """
        found = self._opened().find(number)
        tags = {STATE_TAG: str(told.state), REASON_TAG: told.reason}
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
    done again. What became of a version is remembered before its tags say so: where MLflow is away
    it is marked later.
    """

    def __init__(
        self,
        registry: VersionSource,
        workload: Workload,
        probe: HealthProbe,
        *,
        health_attempts: int,
        metrics: ControllerMetrics,
    ) -> None:
        """Follow.

        Args:
            registry: of the model.
            workload: that follows.
            probe: decides whether a roll-out succeeded.
            health_attempts: probes in a row that must fail before the version counts as failed.
            metrics: shown what is seen and done.
        """
        self._registry = registry
        self._workload = workload
        self._probe = probe
        self._health_attempts = health_attempts
        self._metrics = metrics
        self._faults_in_a_row = 0
        self._last_logged = ""
        self._last_refused = ""

    def step(self) -> Decision:
        """Observe, decide and act once.

        Raises:
            ServingError: the cluster is away, or refuses; nothing is lost by trying again.
            RegistryError: MLflow is away, which is the same.
        """
        state = self._workload.read()
        champion = self._registry.champion()
        self._metrics.show(champion and champion.version, state)
        decision = decide(champion, state)
        if not isinstance(decision, CheckHealth):
            self._faults_in_a_row = 0
        self._act(decision, state)
        return decision

    def _act(self, decision: Decision, state: RolloutState) -> None:
        match decision:
            case Wait(why):
                self._log(why)
            case Refuse(refused):
                self._refuse(refused, state)
            case Roll(version, why):
                self._roll(version, why, state, outcome=ROLLING)
            case RollBack(version, why):
                self._roll(version, why, state, outcome=ROLLED_BACK)
            case CheckHealth(candidate):
                self._check_health(candidate, state)
            case Fail(failed, reason):
                self._fail(failed, reason, state)
            case Mark(marked, told):
                self._registry.mark(marked.version, told)

    def _refuse(self, champion: Champion, state: RolloutState) -> None:
        note = (
            f"{champion.model}/{champion.version} is @champion and is not served: it carries "
            f"neither a gate pass nor a forced promotion's reason (gate: {champion.gate})"
        )
        if note != self._last_refused:
            self._log(note)
            self._workload.record("Refused", note, state, warns=True)
            why = "no gate pass and no forced reason"
            self._registry.mark(champion.version, VersionTags(ServingTag.REFUSED, why))
            self._metrics.count_rollout(ServingTag.REFUSED)
            self._last_refused = note

    def _roll(self, version: str, why: str, state: RolloutState, *, outcome: str) -> None:
        target = self._registry.version(version)
        if target is None or not target.may_lead:  # an earlier version is checked as well
            self._log(f"version {version} is not rolled to: it may not lead any more, or is gone")
            return
        note = f"rolling {self._registry.name} from {state.asked or 'nothing'} to {version}: {why}"
        self._log(note)
        self._workload.record("Rolling", note, state, warns=False)
        self._workload.roll(target)
        self._metrics.count_rollout(outcome)

    def _check_health(self, champion: Champion, state: RolloutState) -> None:
        fault = self._probe.fault(self._workload.address(champion.version))
        if fault is not None:
            self._faults_in_a_row += 1
            self._log(f"probe {self._faults_in_a_row} of {self._health_attempts}: {fault}")
            if self._faults_in_a_row >= self._health_attempts:
                self._faults_in_a_row = 0
                self._fail(champion, fault, state)
            return
        self._faults_in_a_row = 0
        note = f"{champion.model}/{champion.version} is served ({champion.gate})"
        self._log(note)
        self._workload.record("Served", note, state, warns=False)
        self._workload.remember(state.memory.with_success(champion.version), state)
        self._metrics.count_rollout(ServingTag.SERVED)
        self._registry.mark(champion.version, VersionTags(ServingTag.SERVED, champion.gate))

    def _fail(self, champion: Champion, reason: str, state: RolloutState) -> None:
        pods = self._workload.faults(champion.version)
        why = (f"{reason} ({pods})" if pods else reason)[:_MAX_REASON]
        note = f"{champion.model}/{champion.version} could not be served: {why}"
        self._log(note)
        self._workload.record("RolloutFailed", note, state, warns=True)
        self._workload.remember(state.memory.with_failure(champion.promotion, why), state)
        self._metrics.count_rollout(ServingTag.FAILED)
        self._registry.mark(champion.version, VersionTags(ServingTag.FAILED, why))

    def _log(self, what: str) -> None:
        """Log what differs from the last line."""
        if what != self._last_logged:
            self._last_logged = what
            log.info("%s", what)

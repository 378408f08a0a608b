"""The controller's step, which makes the served version follow the alias `champion`.

The controller never moves the alias, also where a version fails: only people and the gate promote
and roll back (`espalier rollback`). A version's tags record the outcome of its roll-out.
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
"""Longest part of a server's answer, in characters, that a fault quotes."""
_MAX_REASON = 2000
"""Longest reason of a failure, in characters: MLflow refuses a tag of more than 5,000."""

log = logging.getLogger(__name__)


class VersionSource:
    """Versions of a registered model: finds the champion, and tags versions."""

    def __init__(self, uri: str, model: str) -> None:
        self.name = model
        self._uri = uri
        self._model: RegisteredModel | None = None

    def champion(self) -> Champion | None:
        """The version that the alias points at now, also one that may not be served.

        Raises:
            RegistryError: MLflow cannot be reached.
        """
        found = self._opened().find(CHAMPION)
        return None if found is None else Champion.of(found)

    def version(self, number: str) -> Champion | None:
        """A version by its number; None where it was deleted.

        Raises:
            RegistryError: MLflow cannot be reached.
        """
        found = self._opened().find(number)
        return None if found is None else Champion.of(found)

    def mark(self, number: str, told: VersionTags) -> None:
        """Tag a version with its outcome, where its tags differ.

        Raises:
            RegistryError: MLflow cannot be reached.
        """
        found = self._opened().find(number)
        tags = {STATE_TAG: str(told.state), REASON_TAG: told.reason}
        if found is not None and any(found.tags.get(key) != value for key, value in tags.items()):
            self._opened().tag(found, tags)

    def _opened(self) -> RegisteredModel:
        # opened here, not in __init__, so that the controller can start before MLflow's server
        if self._model is None:
            self._model = RegisteredModel.open(self._uri, self.name)
        return self._model


class HealthProbe:
    """Health check that requests one token of a version from an OpenAI-compatible server.

    Servers of a Deployment must serve the version under the name `models:/NAME/3`: start vLLM with
    --served-model-name $(ESPALIER_MODEL).
    """

    def __init__(self, key: str | None = None, *, verify: bool = True) -> None:
        """Send `key`, where there is one; check certificates where `verify` is true."""
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._verify = verify

    def fault(self, address: Address) -> str | None:
        """The reason why the check fails; None where a token was returned."""
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
            quoted = answer.text[:_MAX_QUOTED]
            return f"{url} answers {name} with HTTP {answer.status_code}: {quoted}"
        return None if _has_token(answer) else f"{url} answers {name} without a token"


def _has_token(answer: httpx2.Response) -> bool:
    try:
        body: Any = answer.json()
        return int(body["usage"]["completion_tokens"]) == 1
    except (ValueError, KeyError, TypeError):
        return False


class Follower:
    """Makes a workload follow the alias `champion` of one model.

    Each action is announced, done, then remembered, in this order: one that fails half-way is
    announced and done again. An outcome is remembered before the version is tagged: where MLflow
    cannot be reached, a later step tags it.
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
        """Set what follows what; `step` acts.

        Args:
            registry: versions of the model.
            workload: the serving object.
            probe: health check after a roll-out.
            health_attempts: consecutive failed checks after which the version counts as failed.
            metrics: count steps and outcomes.
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
            ServingError: the cluster cannot be reached, or refuses; the step can be repeated.
            RegistryError: MLflow cannot be reached; the step can be repeated.
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
            self._log(f"version {version} is not rolled out: it is deleted or has no gate pass now")
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
        """Log a line, unless it repeats the last one."""
        if what != self._last_logged:
            self._last_logged = what
            log.info("%s", what)

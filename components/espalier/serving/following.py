"""Makes the serving Deployment follow the alias `champion`: observe, decide, act, repeat."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import httpx2

from espalier.cluster.objects.serving import served_version, version_reference
from espalier.registry.model import CHAMPION, RegisteredModel
from espalier.serving.decision import (
    Champion,
    CheckHealth,
    Decision,
    Fail,
    Refuse,
    Roll,
    RolloutState,
    Wait,
    decide,
)
from espalier.serving.deployment import ServingDeployment

STATE_TAG = "espalier.serving"
REASON_TAG = "espalier.serving_reason"
"""Tags of a version: what became of it when it was to be served, and why."""
SERVED, FAILED, REFUSED = "served", "failed", "refused"
"""Values of STATE_TAG."""
_PROBE_TIMEOUT_S = 20.0
_MAX_QUOTED = 200
"""Characters of a server's answer that a fault quotes."""

log = logging.getLogger(__name__)


class VersionSource:
    """A model's champion, read and tagged."""

    def __init__(self, uri: str, model: str) -> None:
        self._uri = uri
        self._name = model
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

    def mark(self, number: str, state: str, reason: str) -> None:
        """Tag a version with what became of it; tags that are there already are not written again.

        Raises:
            RegistryError: MLflow is away.
        """
        found = self._opened().find(number)
        tags = {STATE_TAG: state, REASON_TAG: reason}
        if found is not None and any(found.tags.get(key) != value for key, value in tags.items()):
            self._opened().tag(found, tags)

    def _opened(self) -> RegisteredModel:
        # opened late: a server that is away when the controller starts is waited for
        if self._model is None:
            self._model = RegisteredModel.open(self._uri, self._name)
        return self._model


class HealthProbe:
    """Asks an OpenAI-compatible server for one token of a version.

    The version has to be among the names that it serves, as `models:/NAME/3`: vLLM is given it by
    --served-model-name $(ESPALIER_MODEL).
    """

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        """Ask the server at `url`, with an API key where it wants one."""
        self._url = url.rstrip("/")
        self._model = model
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}

    def fault(self, version: str) -> str | None:
        """What is wrong; None where a token came."""
        reference = version_reference(self._model, version)
        asked = {"model": reference, "prompt": [0], "max_tokens": 1, "temperature": 0.0}
        try:
            answer = httpx2.post(
                f"{self._url}/v1/completions",
                json=asked,
                headers=self._headers,
                timeout=_PROBE_TIMEOUT_S,
                trust_env=False,
            )
        except httpx2.HTTPError as error:
            return f"{self._url} does not answer ({type(error).__name__})"
        if answer.status_code != httpx2.codes.OK:
            said = answer.text[:_MAX_QUOTED]
            return f"{self._url} answers {reference} with HTTP {answer.status_code}: {said}"
        return None if _has_token(answer) else f"{self._url} answers {reference} with no token"


def _has_token(answer: httpx2.Response) -> bool:
    try:
        body: Any = answer.json()
        return int(body["usage"]["completion_tokens"]) == 1
    except (ValueError, KeyError, TypeError):
        return False


class Follower:
    """Makes the serving Deployment follow the alias `champion` of one model.

    Everything is announced before it is done and remembered: what fails half-way is announced and
    done again.
    """

    def __init__(
        self,
        registry: VersionSource,
        deployment: ServingDeployment,
        probe: HealthProbe,
        *,
        model: str,
        namespace: str,
        health_attempts: int,
    ) -> None:
        """Follow.

        Args:
            registry: of the model.
            deployment: that follows.
            probe: decides whether a roll-out succeeded.
            model: registered name.
            namespace: of the Deployment.
            health_attempts: probes in a row that must fail before the version counts as failed.
        """
        self._registry = registry
        self._deployment = deployment
        self._probe = probe
        self._model = model
        self._namespace = namespace
        self._health_attempts = health_attempts
        self._faults_in_a_row = 0
        self._last_logged = ""
        self._last_refused = ""
        self.counts: Counter[str] = Counter()
        """What was done since the start, by the names of `controller_metrics.COUNTED`."""
        self.versions: dict[str, str] = {}
        """Number of the champion and of the version that was served last."""

    def step(self) -> Decision:
        """Observe, decide and act once.

        Raises:
            ServingError: the cluster is away, or refuses; nothing is lost by trying again.
            RegistryError: MLflow is away.
        """
        champion = self._registry.champion()
        state = RolloutState.read(self._deployment.read(), self._model)
        seen = {"champion": champion and champion.version, "served": state.memory.last_good}
        self.versions = {role: number for role, number in seen.items() if number}
        decision = decide(champion, state)
        if not isinstance(decision, CheckHealth):
            self._faults_in_a_row = 0
        match decision:
            case Wait(why):
                self._log(why)
            case Refuse(refused):
                self._refuse(refused, state)
            case Roll(version, why):
                self._roll(version, why, state)
            case CheckHealth(candidate):
                self._check_health(candidate, state)
            case Fail(failed, reason):
                self._fail(failed, reason, state)
        return decision

    def _refuse(self, champion: Champion, state: RolloutState) -> None:
        note = (
            f"{champion.model}/{champion.version} is @champion and is not served: it carries "
            f"neither a gate pass nor a forced promotion's reason (gate: {champion.gate})"
        )
        if note != self._last_refused:
            self._log(note)
            self.counts["refusals"] += 1
            self._deployment.record("Refused", note, state, warns=True)
            self._registry.mark(champion.version, REFUSED, "no gate pass and no forced reason")
            self._last_refused = note

    def _roll(self, version: str, why: str, state: RolloutState) -> None:
        """Roll to a version, if it may lead at this moment; an earlier one is checked as well."""
        target = self._registry.version(version)
        if target is None or not target.may_lead:
            self._log(f"version {version} is not rolled to: it may not lead any more, or is gone")
            return
        note = f"rolling {self._model} from {state.asked or 'nothing'} to {version}: {why}"
        self._log(note)
        self.counts["rollouts" if version == self.versions.get("champion") else "rollbacks"] += 1
        self._deployment.record("Rolling", note, state, warns=False)
        self._deployment.apply(
            served_version(
                self._model, version, policy_digest=target.policy_digest, namespace=self._namespace
            )
        )

    def _check_health(self, champion: Champion, state: RolloutState) -> None:
        fault = self._probe.fault(champion.version)
        if fault is None:
            self._faults_in_a_row = 0
            note = f"{champion.model}/{champion.version} is served ({champion.gate})"
            self._log(note)
            self._deployment.record("Served", note, state, warns=False)
            self._registry.mark(champion.version, SERVED, champion.gate)
            self._deployment.remember(state.memory.with_success(champion.version), state)
            return
        self._faults_in_a_row += 1
        self._log(f"probe {self._faults_in_a_row} of {self._health_attempts}: {fault}")
        if self._faults_in_a_row >= self._health_attempts:
            self._faults_in_a_row = 0
            self._fail(champion, fault, state)

    def _fail(self, champion: Champion, reason: str, state: RolloutState) -> None:
        pods = self._deployment.faults(champion.version)
        why = f"{reason} ({pods})" if pods else reason
        note = f"{champion.model}/{champion.version} could not be served: {why}"
        self._log(note)
        self.counts["failures"] += 1
        self._deployment.record("RolloutFailed", note, state, warns=True)
        self._registry.mark(champion.version, FAILED, why)
        self._deployment.remember(state.memory.with_failure(champion.promotion, why), state)

    def _log(self, what: str) -> None:
        """Log what differs from the last line."""
        if what != self._last_logged:
            self._last_logged = what
            log.info("%s", what)

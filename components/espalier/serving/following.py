"""One look, one decision, one deed: what the controller does again and again."""

from __future__ import annotations

import logging
from typing import Protocol

from espalier.cluster.objects.serving import served_version
from espalier.serving.champion import FAILED, REFUSED, SERVED, Champion, Registry
from espalier.serving.decision import CheckHealth, Fail, Refuse, Roll, Step, Wait, decide
from espalier.serving.deployment import ServingDeployment
from espalier.serving.rollout_state import RolloutState

log = logging.getLogger(__name__)


class Probes(Protocol):
    """Says whether a version answers."""

    def fault(self, version: str) -> str | None:
        """What is wrong; None where nothing is."""
        ...


class Follower:
    """Lets the serving Deployment follow the alias `champion` of one model.

    Everything is told before it is done or remembered: what fails half-way is told and done again.
    """

    def __init__(
        self,
        registry: Registry,
        deployment: ServingDeployment,
        probe: Probes,
        *,
        model: str,
        namespace: str,
        health_attempts: int,
    ) -> None:
        """Follow.

        Args:
            registry: of the model.
            deployment: that follows.
            probe: the last word on whether a roll-out succeeded.
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
        self._last_said = ""
        self._last_refused = ""

    def step(self) -> Step:
        """Look, decide and act once.

        Raises:
            ServingError: the cluster is away, or refuses; nothing is lost by trying again.
            RegistryError: MLflow is away.
        """
        champion = self._registry.champion()
        state = RolloutState.read(self._deployment.read(), self._model)
        step = decide(champion, state)
        if not isinstance(step, CheckHealth):
            self._faults_in_a_row = 0
        match step:
            case Wait(why):
                self._say(why)
            case Refuse(refused):
                self._refuse(refused, state)
            case Roll(version, why):
                self._roll(version, why, state)
            case CheckHealth(candidate):
                self._check_health(candidate, state)
            case Fail(failed, reason):
                self._fail(failed, reason, state)
        return step

    def _refuse(self, champion: Champion, state: RolloutState) -> None:
        note = (
            f"{champion.model}/{champion.version} is @champion and is not served: it carries "
            f"neither a gate pass nor a forced promotion's reason (gate: {champion.gate})"
        )
        if note != self._last_refused:
            self._say(note)
            self._deployment.record("Refused", note, state, warns=True)
            self._registry.mark(champion.version, REFUSED, "no gate pass and no forced reason")
            self._last_refused = note

    def _roll(self, version: str, why: str, state: RolloutState) -> None:
        """Whatever is rolled to may lead at this moment, a former version as well."""
        target = self._registry.version(version)
        if target is None or not target.may_lead:
            self._say(f"version {version} is not rolled to: it may not lead any more, or is gone")
            return
        note = f"rolling {self._model} from {state.asked or 'nothing'} to {version}: {why}"
        self._say(note)
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
            self._say(note)
            self._deployment.record("Served", note, state, warns=False)
            self._registry.mark(champion.version, SERVED, champion.gate)
            self._deployment.remember(state.memory.with_success(champion.version), state)
            return
        self._faults_in_a_row += 1
        self._say(f"probe {self._faults_in_a_row} of {self._health_attempts}: {fault}")
        if self._faults_in_a_row >= self._health_attempts:
            self._faults_in_a_row = 0
            self._fail(champion, fault, state)

    def _fail(self, champion: Champion, reason: str, state: RolloutState) -> None:
        told = self._deployment.faults(champion.version)
        why = f"{reason} ({told})" if told else reason
        note = f"{champion.model}/{champion.version} could not be served: {why}"
        self._say(note)
        self._deployment.record("RolloutFailed", note, state, warns=True)
        self._registry.mark(champion.version, FAILED, why)
        self._deployment.remember(state.memory.with_failure(champion.promotion, why), state)

    def _say(self, what: str) -> None:
        """Log a thing once, and not with every look."""
        if what != self._last_said:
            self._last_said = what
            log.info("%s", what)

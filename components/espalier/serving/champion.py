"""Which version `champion` asks for, and whether it may be served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from espalier.registry.model import (
    CHAMPION,
    CHAMPION_SINCE,
    GATE_REASON,
    ModelVersion,
    RegisteredModel,
)

STATE = "espalier.serving"
REASON = "espalier.serving_reason"
"""Tags of a version: what became of it when it was to be served, and why."""
SERVED, FAILED, REFUSED = "served", "failed", "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Champion:
    """A version, as the controller needs to know it."""

    model: str
    version: str
    policy_digest: str
    may_lead: bool
    """Whether a gate pass, or a forced promotion's reason, is recorded."""
    gate: str
    """The gate's word and its reason, for people."""
    since: str
    """When it was last promoted; empty where it never was."""

    @classmethod
    def of(cls, version: ModelVersion) -> Self:
        """What a version says of itself."""
        reason = version.tags.get(GATE_REASON, "")
        return cls(
            model=version.model,
            version=version.version,
            policy_digest=version.policy_digest,
            may_lead=version.may_lead,
            gate=f"{version.gate}: {reason}" if reason else version.gate,
            since=version.tags.get(CHAMPION_SINCE, ""),
        )

    @property
    def promotion(self) -> str:
        """This version in this promotion: promoted again, it is another."""
        return f"{self.version}@{self.since}"


class Registry:
    """A model's champion, read and marked."""

    def __init__(self, uri: str, model: str) -> None:
        self._uri = uri
        self._name = model
        self._model: RegisteredModel | None = None

    def champion(self) -> Champion | None:
        """The version that the alias points at now, may it lead or not.

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
        """Write down with the version what became of it; the same words are not written twice.

        Raises:
            RegistryError: MLflow is away.
        """
        found = self._opened().find(number)
        words = {STATE: state, REASON: reason}
        if found is not None and any(found.tags.get(key) != word for key, word in words.items()):
            self._opened().tag(found, words)

    def _opened(self) -> RegisteredModel:
        """Opened late: a server that is away when the controller starts is waited for."""
        if self._model is None:
            self._model = RegisteredModel.open(self._uri, self._name)
        return self._model

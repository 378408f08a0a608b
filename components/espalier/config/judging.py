"""Profile sections `reward.judges` and `reward.self_critique`: models that grade attempts."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from espalier.config.data import Section
from espalier.config.teacher import EndpointConfig

LEAST_JUDGES, MOST_JUDGES = 3, 5


class Criterion(Section):
    """One question of a rubric, answered by yes or no."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    """A key of the judges' JSON."""
    question: str = Field(min_length=1, max_length=2000)
    """What a judge is asked; yes is good."""
    weight: float = Field(default=1.0, gt=0)
    """Beside the other criteria."""


DEFAULT_RUBRIC = (
    Criterion(name="success", question="Did the agent do what was asked, completely?", weight=2),
    Criterion(
        name="grounded", question="Does what it answered follow from what its tools returned?"
    ),
    Criterion(name="economical", question="Was every tool call useful, and none repeated?"),
)


class GradingConfig(Section):
    """What judges are asked, and what their score is worth."""

    weight: float = Field(default=0.2, gt=0)
    """Paid for a score of 1, in training; the score is the share of the rubric that holds."""
    rubric: tuple[Criterion, ...] = Field(default=DEFAULT_RUBRIC, min_length=1)
    """Criteria, each answered by yes or no."""
    cache: Path | None = None
    """Folder of answers for models that name none of their own."""
    max_cost: float = Field(default=0.0, ge=0)
    """Largest cost of all models together, in the currency of their prices: the run stops before a
    question that could exceed it; 0 sets no limit."""
    max_observation_characters: int = Field(default=2000, ge=100)
    """Longer tool results are cut for the judges."""

    @property
    @abstractmethod
    def endpoints(self) -> tuple[EndpointConfig, ...]:
        """The models that are asked."""

    @model_validator(mode="after")
    def _criteria_have_names_of_their_own(self) -> Self:
        names = [criterion.name for criterion in self.rubric]
        if len(set(names)) < len(names):
            raise ValueError(f"rubric: criteria share a name ({', '.join(names)})")
        return self

    @model_validator(mode="after")
    def _models_can_be_asked(self) -> Self:
        if any(not (one.url and one.model) for one in self.endpoints):
            raise ValueError("each judge needs its url and its model")
        if self.max_cost and any(
            not (one.prompt_price or one.completion_price) for one in self.endpoints
        ):
            raise ValueError(
                f"max_cost={self.max_cost} limits nothing where a judge has no prices; set its "
                "prompt_price and completion_price (a million tokens)"
            )
        return self


class JudgesConfig(GradingConfig):
    """An ensemble of models that grade attempts by a rubric; a rule beats it where there is one."""

    models: tuple[EndpointConfig, ...] = Field(min_length=LEAST_JUDGES, max_length=MOST_JUDGES)
    """Three to five different models; for each criterion the majority counts."""
    decides: Literal["nothing", "tasks_without_rule"] = "nothing"
    """Whether their majority is the outcome of tasks whose verifier is "rubric", which have no
    rule. The outcome of all others stays the rule's."""

    @property
    def endpoints(self) -> tuple[EndpointConfig, ...]:
        """Endpoints of the models that grade."""
        return self.models

    @model_validator(mode="after")
    def _models_differ(self) -> Self:
        named = [(one.url, one.model) for one in self.models]
        if len(set(named)) < len(named):
            raise ValueError(
                "reward.judges.models: one model stands there twice; it would outvote the others"
            )
        return self


class SelfCritiqueConfig(GradingConfig):
    """The policy's own server grades its attempts by a rubric: auxiliary, never an outcome."""

    weight: float = Field(default=0.1, gt=0)
    endpoint: EndpointConfig
    """The server of the policy, as `rollout.vllm` has it."""

    @property
    def endpoints(self) -> tuple[EndpointConfig, ...]:
        """Endpoints of the models that grade."""
        return (self.endpoint,)

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
    """One yes-or-no question of a rubric."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    """Key of the criterion in the judges' JSON."""
    question: str = Field(min_length=1, max_length=2000)
    """Question for the judges; "yes" is good."""
    weight: float = Field(default=1.0, gt=0)
    """Weight relative to the other criteria."""


DEFAULT_RUBRIC = (
    Criterion(name="success", question="Did the agent do what was asked, completely?", weight=2),
    Criterion(
        name="grounded", question="Does what it answered follow from what its tools returned?"
    ),
    Criterion(name="economical", question="Was every tool call useful, and none repeated?"),
)


class GradingConfig(Section):
    """Rubric of the judges, and weight of their score in the reward."""

    weight: float = Field(default=0.2, gt=0)
    """Reward for a score of 1, in training; the score is the weighted share of met criteria."""
    rubric: tuple[Criterion, ...] = Field(default=DEFAULT_RUBRIC, min_length=1)
    """Yes-or-no criteria."""
    cache: Path | None = None
    """Folder with cached answers, for models without a cache of their own."""
    max_cost: float = Field(default=0.0, ge=0)
    """Largest cost of all models together, in the currency of their prices: the run stops before a
    request that could exceed it; 0 sets no limit."""
    max_observation_characters: int = Field(default=2000, ge=100)
    """Longest tool result that judges read; longer ones are cut."""

    @property
    @abstractmethod
    def endpoints(self) -> tuple[EndpointConfig, ...]:
        """Endpoints of the judging models."""

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
                f"max_cost={self.max_cost} limits nothing if a judge has no prices; set its "
                "prompt_price and completion_price (per million tokens)"
            )
        return self


class JudgesConfig(GradingConfig):
    """An ensemble of models that grades attempts by a rubric; a rule is better if there is one."""

    models: tuple[EndpointConfig, ...] = Field(min_length=LEAST_JUDGES, max_length=MOST_JUDGES)
    """Three to five different models; the majority decides each criterion."""
    decides: Literal["nothing", "tasks_without_rule"] = "nothing"
    """Whether their majority is the outcome of tasks with the verifier "rubric", which have no
    rule. All other outcomes stay the rule's."""

    @property
    def endpoints(self) -> tuple[EndpointConfig, ...]:
        """Endpoints of the judging models."""
        return self.models

    @model_validator(mode="after")
    def _models_differ(self) -> Self:
        named = [(url, one.model) for one in self.models for url in one.urls]
        if len(set(named)) < len(named):
            raise ValueError(
                "reward.judges.models names one model twice, which would outvote the others"
            )
        return self


class SelfCritiqueConfig(GradingConfig):
    """The policy's own server grades its attempts by a rubric: auxiliary, never an outcome."""

    weight: float = Field(default=0.1, gt=0)
    endpoint: EndpointConfig
    """Server of the policy, the same as in `rollout.vllm`."""

    @property
    def endpoints(self) -> tuple[EndpointConfig, ...]:
        """Endpoint of the policy's server."""
        return (self.endpoint,)

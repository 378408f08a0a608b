"""Profile section `reward`: terms of an episode's reward, of which the outcome is the largest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from espalier.algorithms.advantages import Gdpo
from espalier.algorithms.shaping import (
    Span,
    TermContext,
    TermRule,
    require_outcome_dominates,
)
from espalier.config.data import Section
from espalier.config.environment import family_class
from espalier.config.judging import GradingConfig, JudgesConfig, SelfCritiqueConfig
from espalier.config.reward_models import OutcomeModelConfig, ProcessRewardConfig
from espalier.records.trajectory import TURNS_TERM

if TYPE_CHECKING:
    from espalier.config.profile import Profile


class RewardConfig(Section):
    """Outcome reward with a small format term; the outcome is at least half of any total."""

    outcome: float = Field(default=1.0, gt=0)
    """Reward for an answer that the family's verifier accepts."""
    format: float = Field(default=0.1, ge=0)
    """Reward for an episode that ends with a well-formed answer, right or wrong."""
    outcome_scale: Literal["family", "unit"] = "family"
    """Range of the outcome: "family" is the family's own (ReTool's is -1 to 1); "unit" divides by
    its width, so that right and wrong differ by `outcome` in every family, as a mixture needs."""
    terms: tuple[TermRule, ...] = ()
    """Further terms, only in training: lengths, calls, agreement. Unset, those of
    `training.algorithm.preset`, such as DAPO's overlong penalty."""

    judges: JudgesConfig | None = None
    """Models that grade attempts; unset for none."""
    self_critique: SelfCritiqueConfig | None = None
    """Grading of attempts by the policy itself; unset for none."""

    process: ProcessRewardConfig | None = None
    """Trained head that scores the steps of attempts; unset for none."""
    outcome_model: OutcomeModelConfig | None = None
    """Trained head as the outcome; unset, the rule decides, as it should if there is one."""

    def external_files(self) -> dict[str, Path | None]:
        """Profile key -> folder of the user's trained head that it names."""
        return {
            "reward.process.model": self.process and self.process.model,
            "reward.outcome_model.model": self.outcome_model and self.outcome_model.model,
        }

    @property
    def graders(self) -> dict[str, GradingConfig]:
        """Term of the reward -> settings of the models that grade it."""
        found = {"judges": self.judges, "self_critique": self.self_critique}
        return {name: config for name, config in found.items() if config is not None}

    @model_validator(mode="after")
    def _outcome_dominates(self) -> Self:
        if self.format > self.outcome:
            raise ValueError(
                f"reward: format={self.format} exceeds outcome={self.outcome}; a policy "
                "would gain more by its tags than by its answer. Lower format"
            )
        return self

    @model_validator(mode="after")
    def _terms_have_names_of_their_own(self) -> Self:
        names = [term.key for term in self.terms]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"reward.terms: {', '.join(twice)} occurs twice, but terms are kept by name. Leave "
                "one out"
            )
        return self


def term_context(profile: Profile) -> TermContext:
    """Token limit of an episode, and range of the outcome in units of reward."""
    low, high = outcome_span(profile)
    scale = profile.reward.outcome * outcome_scale(profile)
    return TermContext(
        max_tokens=profile.episode.max_tokens, outcome_low=scale * low, outcome_high=scale * high
    )


def outcome_span(profile: Profile) -> tuple[float, float]:
    """Lowest and highest value that the family's verifier returns."""
    return family_class(profile.environment.name).outcome_span(profile.environment)


def outcome_scale(profile: Profile) -> float:
    """Factor of the family's outcomes, before `reward.outcome`."""
    low, high = outcome_span(profile)
    return 1.0 if profile.reward.outcome_scale == "family" else 1.0 / (high - low)


def require_composition(profile: Profile, further: Mapping[str, Span] | None = None) -> None:
    """Check that the outcome's range is at least half of the reward's.

    Args:
        profile: the profile.
        further: ranges of the family's own terms, by name.

    Raises:
        ValueError: it is less; the message has the range of each term.
    """
    context = term_context(profile)
    spans = {"format": Span(0.0, profile.reward.format)}
    spans |= {term.key: term.span(context) for term in profile.reward.terms}
    spans |= {name: Span(0.0, one.weight) for name, one in profile.reward.graders.items()}
    if profile.reward.process is not None:
        spans["process"] = Span(0.0, profile.reward.process.weight)
    spans |= further or {}
    require_outcome_dominates(spans, context)


def require_weighted_terms(profile: Profile) -> None:
    """Check that every weight of the advantage "gdpo" names a term of the reward.

    Raises:
        ValueError: some do not; the message names them, and the terms of the reward.
    """
    advantage, reward = profile.training.algorithm.advantage, profile.reward
    if not isinstance(advantage, Gdpo) or profile.agent.score == "posted":
        return  # an agent posts terms of any name
    terms = {"outcome", "format", TURNS_TERM, *reward.graders, *(term.key for term in reward.terms)}
    terms |= {"process"} if reward.process is not None else set()
    for name in profile.environment.families():
        terms |= family_class(name).further_terms
    if unknown := sorted(advantage.weights.keys() - terms):
        raise ValueError(
            f"training.algorithm.advantage.weights names {', '.join(unknown)}, but the terms of "
            f"the reward are {', '.join(sorted(terms))}; leave it out, or add the term to "
            "reward.terms"
        )

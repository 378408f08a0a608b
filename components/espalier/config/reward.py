"""Profile section `reward`: what an episode is paid for, beside and including its outcome."""

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
    """Paid for an answer that the family's verifier accepts."""
    format: float = Field(default=0.1, ge=0)
    """Paid for an episode that ends with a well-formed answer, right or wrong."""
    outcome_scale: Literal["family", "unit"] = "family"
    """The outcome in the family's own range (ReTool's is -1 to 1), or divided by the width of that
    range, so that right and wrong are `outcome` apart in every family, as a mixture needs it."""
    terms: tuple[TermRule, ...] = ()
    """Further terms, in training alone: lengths, calls, agreement. Without this key those of
    `training.algorithm.preset`, such as DAPO's overlong penalty."""

    judges: JudgesConfig | None = None
    """Unset: no model grades attempts."""
    self_critique: SelfCritiqueConfig | None = None
    """Unset: the policy does not grade its own attempts."""

    process: ProcessRewardConfig | None = None
    """Unset: no head scores the steps of attempts."""
    outcome_model: OutcomeModelConfig | None = None
    """Unset: the rule decides, as it should wherever there is one."""

    def external_files(self) -> dict[str, Path | None]:
        """The user's own heads, by the key that names them."""
        return {
            "reward.process.model": self.process and self.process.model,
            "reward.outcome_model.model": self.outcome_model and self.outcome_model.model,
        }

    @property
    def graders(self) -> dict[str, GradingConfig]:
        """Term of the reward -> the models that grade for it."""
        found = {"judges": self.judges, "self_critique": self.self_critique}
        return {name: config for name, config in found.items() if config is not None}

    @model_validator(mode="after")
    def _outcome_dominates(self) -> Self:
        if self.format > self.outcome:
            raise ValueError(
                f"reward: format={self.format} exceeds outcome={self.outcome}; a policy "
                "would be paid more for its tags than for its answer. Lower format"
            )
        return self

    @model_validator(mode="after")
    def _terms_have_names_of_their_own(self) -> Self:
        names = [term.key for term in self.terms]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"reward.terms: {', '.join(twice)} stands there twice; a term is kept by its name. "
                "Leave one out"
            )
        return self


def term_context(profile: Profile) -> TermContext:
    """Limit of an episode and range of an outcome, as they are paid."""
    low, high = outcome_span(profile)
    paid = profile.reward.outcome * outcome_scale(profile)
    return TermContext(
        max_tokens=profile.episode.max_tokens, outcome_low=paid * low, outcome_high=paid * high
    )


def outcome_span(profile: Profile) -> tuple[float, float]:
    """Least and most that the family's verifier returns."""
    return family_class(profile.environment.name).outcome_span(profile.environment)


def outcome_scale(profile: Profile) -> float:
    """What an outcome of the family is multiplied by, before `reward.outcome`."""
    low, high = outcome_span(profile)
    return 1.0 if profile.reward.outcome_scale == "family" else 1.0 / (high - low)


def require_composition(profile: Profile, further: Mapping[str, Span] | None = None) -> None:
    """Check that the outcome is at least half of what the reward can change.

    Args:
        profile: whose reward it is.
        further: ranges of the family's own terms, by name.

    Raises:
        ValueError: naming the terms, and what each can change.
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
    """Check that every weight of advantage "gdpo" is of a term that is paid.

    Raises:
        ValueError: some are not; naming them, and the terms that there are.
    """
    advantage, reward = profile.training.algorithm.advantage, profile.reward
    if not isinstance(advantage, Gdpo) or profile.agent.score == "posted":
        return  # an agent posts terms of any name
    paid = {"outcome", "format", TURNS_TERM, *reward.graders, *(term.key for term in reward.terms)}
    paid |= {"process"} if reward.process is not None else set()
    for name in profile.environment.families():
        paid |= family_class(name).further_terms
    if unpaid := sorted(advantage.weights.keys() - paid):
        raise ValueError(
            f"training.algorithm.advantage.weights names {', '.join(unpaid)}, and the terms of the "
            f"reward are {', '.join(sorted(paid))}; leave it out, or add the term to reward.terms"
        )

"""A soft price on length: the outcome times a sigmoid of what is left to the target."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import (
    EpisodeFacts,
    EpisodeTerm,
    LengthUnit,
    Span,
    TermContext,
)


class SigmoidLength(EpisodeTerm):
    """Takes `share * (1 - sigmoid((target - length) / softness))` of a positive outcome.

    With share 1 the total is `outcome * sigmoid(-(length - target) / softness)`. A wrong answer is
    not priced: times a sigmoid, an outcome of -1 would become better with every token.
    """

    name: Literal["sigmoid_length"] = "sigmoid_length"
    unit: LengthUnit = "tokens"
    """What is counted: messages of the policy, its tokens, or all tokens."""
    target: int = Field(default=160, ge=0)
    """Length at which half of the share is taken."""
    softness: float = Field(default=16.0, gt=0)
    """Units of length over which the price rises."""
    share: float = Field(default=0.5, gt=0, le=1)
    """The most of the outcome that is taken."""

    def span(self, context: TermContext) -> Span:
        """See `RewardTerm`."""
        return Span(-self.share * max(0.0, context.outcome_high), 0.0)

    def payment(self, episode: EpisodeFacts, context: TermContext) -> float:
        """See `EpisodeTerm`."""
        del context
        over = (episode.length(self.unit) - self.target) / self.softness
        taken = 0.5 * (1 + math.tanh(over / 2))  # 1 - sigmoid(-over), without overflow
        return -self.share * max(0.0, episode.outcome) * taken

"""A soft penalty on length: the outcome times a sigmoid of the length left to the target."""

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
    """Subtracts `share * (1 - sigmoid((target - length) / softness))` of a positive outcome.

    With share 1 the total is `outcome * sigmoid(-(length - target) / softness)`. Wrong answers have
    no penalty: times a sigmoid, an outcome of -1 would improve with every token.
    """

    name: Literal["sigmoid_length"] = "sigmoid_length"
    unit: LengthUnit = "tokens"
    """Unit of length: messages of the policy, its tokens, or all tokens."""
    target: int = Field(default=160, ge=0)
    """Length at which half of the share is subtracted."""
    softness: float = Field(default=16.0, gt=0)
    """Units of length over which the penalty rises."""
    share: float = Field(default=0.5, gt=0, le=1)
    """Largest share of the outcome that is subtracted."""

    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""
        return Span(-self.share * max(0.0, context.outcome_high), 0.0)

    def reward(self, episode: EpisodeFacts, context: TermContext) -> float:
        """Return the term's amount for `episode`, reward units."""
        del context
        over = (episode.length(self.unit) - self.target) / self.softness
        taken = 0.5 * (1 + math.tanh(over / 2))  # 1 - sigmoid(-over), without overflow
        return -self.share * max(0.0, episode.outcome) * taken

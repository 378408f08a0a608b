"""A cosine of length: short right answers are worth more, long wrong ones cost less.

Yeo et al. 2025 (arXiv:2502.03373, sec. 4.2); TRL's `get_cosine_scaled_reward`.
"""

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


def cosine_progress(length: int, max_length: int) -> float:
    """Return 0 for no length and 1 for `max_length` and beyond, along half a cosine."""
    return 0.5 * (1 - math.cos(math.pi * min(1.0, length / max_length)))


class CosineLength(EpisodeTerm):
    """Moves an outcome towards the middle of its range as the episode grows.

    With outcomes of 1 and -1, share 0.25 and no other term, the total is TRL's default: 1 to 0.5
    for right answers, -1 to -0.5 for wrong ones. It makes a policy think longer about tasks that it
    fails.
    """

    name: Literal["cosine_length"] = "cosine_length"
    unit: LengthUnit = "tokens"
    """Unit of length: messages of the policy, its tokens, or all tokens."""
    max_length: int = Field(default=224, ge=1)
    """Length beyond which the term does not change."""
    share: float = Field(default=0.25, gt=0, le=0.5)
    """Largest amount of the term, as a share of the outcome's range."""

    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""
        most = self.share * context.outcome_width
        return Span(-most, most)

    def reward(self, episode: EpisodeFacts, context: TermContext) -> float:
        """Return the term's amount for `episode`, reward units."""
        moved = self.share * context.outcome_width
        moved *= cosine_progress(episode.length(self.unit), self.max_length)
        return -moved if episode.is_right else moved

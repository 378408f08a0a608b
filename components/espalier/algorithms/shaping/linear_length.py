"""A penalty on length beyond a target: `-per_unit * max(0, length - target)`, up to a cap."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import (
    EpisodeFacts,
    EpisodeTerm,
    LengthUnit,
    Span,
    TermContext,
)


class LinearLength(EpisodeTerm):
    """Each unit of length beyond the target costs the same."""

    name: Literal["linear_length"] = "linear_length"
    unit: LengthUnit = "turns"
    """Unit of length: messages of the policy, its tokens, or all tokens."""
    target: int = Field(default=4, ge=0)
    """Length up to which there is no penalty."""
    per_unit: float = Field(default=0.05, gt=0)
    """Penalty for each further unit."""
    cap: float = Field(default=0.25, gt=0)
    """Largest penalty of one episode."""

    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""
        del context
        return Span(-self.cap, 0.0)

    def reward(self, episode: EpisodeFacts, context: TermContext) -> float:
        """Return the term's amount for `episode`, reward units."""
        del context
        over = max(0, episode.length(self.unit) - self.target)
        return -min(self.cap, self.per_unit * over)

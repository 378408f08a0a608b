"""A small price for every message of the policy, right or wrong."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import EpisodeFacts, Span, TermContext, TurnTerm


class TurnPenalty(TurnTerm):
    """Each turn costs `per_turn`, up to a cap; the price falls on its own turn."""

    name: Literal["turn_penalty"] = "turn_penalty"
    per_turn: float = Field(default=0.01, gt=0)
    """Price of a message."""
    cap: float = Field(default=0.1, gt=0)
    """The most that is taken in one episode."""

    def span(self, context: TermContext) -> Span:
        """See `RewardTerm`."""
        del context
        return Span(-self.cap, 0.0)

    def turn_payments(self, episode: EpisodeFacts) -> list[float]:
        """See `TurnTerm`."""
        taken = [min(self.cap, self.per_turn * n) for n in range(len(episode.turns) + 1)]
        return [before - after for before, after in pairwise(taken)]

"""A small penalty for every message of the policy, right or wrong."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import EpisodeFacts, Span, TermContext, TurnTerm


class TurnPenalty(TurnTerm):
    """Each turn costs `per_turn`, up to a cap; the penalty belongs to its turn."""

    name: Literal["turn_penalty"] = "turn_penalty"
    per_turn: float = Field(default=0.01, gt=0)
    """Penalty of a message."""
    cap: float = Field(default=0.1, gt=0)
    """Largest penalty of one episode."""

    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""
        del context
        return Span(-self.cap, 0.0)

    def turn_rewards(self, episode: EpisodeFacts) -> list[float]:
        """Return the term's amount for each message of the policy, reward units."""
        taken = [min(self.cap, self.per_turn * n) for n in range(len(episode.turns) + 1)]
        return [before - after for before, after in pairwise(taken)]

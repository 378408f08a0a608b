"""A cap on calls: an episode that makes more of them gets a fixed penalty."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import EpisodeFacts, EpisodeTerm, Span, TermContext


class CallsCap(EpisodeTerm):
    """Subtracts `penalty` once from an episode with more than `most` calls.

    It acts against policies that call tools for the shaping reward, or because a longer episode
    finds the answer by chance.
    """

    name: Literal["calls_cap"] = "calls_cap"
    most: int = Field(default=8, ge=0)
    """Number of calls without penalty."""
    penalty: float = Field(default=0.2, gt=0)
    """Penalty for more calls."""

    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""
        del context
        return Span(-self.penalty, 0.0)

    def reward(self, episode: EpisodeFacts, context: TermContext) -> float:
        """Return the term's amount for `episode`, reward units."""
        del context
        return -self.penalty * (len(episode.calls) > self.most)

"""A cap on calls: an episode that makes more of them loses a fixed amount."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import EpisodeFacts, EpisodeTerm, Span, TermContext


class CallsCap(EpisodeTerm):
    """Takes `penalty` once from an episode with more than `most` calls.

    Against policies that call tools for what shaping pays, or because a longer episode finds the
    answer by chance.
    """

    name: Literal["calls_cap"] = "calls_cap"
    most: int = Field(default=8, ge=0)
    """Calls that are free."""
    penalty: float = Field(default=0.2, gt=0)
    """Taken where there were more."""

    def span(self, context: TermContext) -> Span:
        """See `RewardTerm`."""
        del context
        return Span(-self.penalty, 0.0)

    def payment(self, episode: EpisodeFacts, context: TermContext) -> float:
        """See `EpisodeTerm`."""
        del context
        return -self.penalty * (len(episode.calls) > self.most)

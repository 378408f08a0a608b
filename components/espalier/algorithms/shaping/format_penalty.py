"""A price on messages that cannot be read (RAGEN, Wang et al. 2025, arXiv:2504.20073)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import EpisodeFacts, EpisodeTerm, Span, TermContext


class FormatPenalty(EpisodeTerm):
    """Takes `penalty` from an episode that ended with a message that could not be read.

    Such a message ends the episode, so that it is taken once at most. `reward.format` pays for the
    form of an answer instead, where a penalty leaves the total of a good episode as it is.
    """

    name: Literal["format_penalty"] = "format_penalty"
    penalty: float = Field(default=0.1, gt=0)
    """Taken for it, reward units."""

    def span(self, context: TermContext) -> Span:
        """See `RewardTerm`."""
        del context
        return Span(-self.penalty, 0.0)

    def payment(self, episode: EpisodeFacts, context: TermContext) -> float:
        """See `EpisodeTerm`."""
        del context
        return -self.penalty * episode.is_malformed

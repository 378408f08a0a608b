"""A penalty for messages that cannot be read (RAGEN, Wang et al. 2025, arXiv:2504.20073)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import EpisodeFacts, EpisodeTerm, Span, TermContext


class FormatPenalty(EpisodeTerm):
    """Subtracts `penalty` from an episode that ended with a message that could not be read.

    Such a message ends the episode, so the penalty applies at most once. `reward.format` instead
    rewards the form of an answer, while a penalty leaves the total of a good episode unchanged.
    """

    name: Literal["format_penalty"] = "format_penalty"
    penalty: float = Field(default=0.1, gt=0)
    """Size of the penalty, reward units."""

    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""
        del context
        return Span(-self.penalty, 0.0)

    def reward(self, episode: EpisodeFacts, context: TermContext) -> float:
        """Return the term's amount for `episode`, reward units."""
        del context
        return -self.penalty * episode.is_malformed

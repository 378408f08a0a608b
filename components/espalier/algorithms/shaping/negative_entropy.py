"""Negative entropy: certainty as a reward (RENT, Prabhudesai et al. 2025, arXiv:2505.22660)."""

from __future__ import annotations

from statistics import fmean
from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.shaping.term import EpisodeFacts, EpisodeTerm, Span, TermContext


class NegativeEntropy(EpisodeTerm):
    """Subtracts more, the less certain the policy was of the tokens that it sampled.

    The entropy of a token's distribution is estimated by the negative log-prob of the token that
    was drawn, whose expectation it is; the mean over the episode is cut off at `most_nats`.
    Auxiliary: it rewards certainty, right or wrong, and lowers the entropy by itself.
    """

    is_auxiliary: ClassVar[bool] = True
    name: Literal["negative_entropy"] = "negative_entropy"
    weight: float = Field(default=0.1, gt=0)
    """Penalty at `most_nats` and above."""
    most_nats: float = Field(default=2.0, gt=0)
    """Entropy of a token, in nats, from which the penalty grows no further."""

    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""
        del context
        return Span(-self.weight, 0.0)

    def reward(self, episode: EpisodeFacts, context: TermContext) -> float:
        """Return the term's amount for `episode`, reward units."""
        del context
        if not episode.action_logprobs:
            return -self.weight
        nats = -fmean(episode.action_logprobs)
        return -self.weight * min(1.0, max(0.0, nats / self.most_nats))

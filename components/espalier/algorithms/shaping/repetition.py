"""A price on repeated n-grams of tokens (Yeo et al. 2025, arXiv:2502.03373, app. B; TRL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import EpisodeFacts, EpisodeTerm, Span, TermContext


def repeated_share(token_ids: Sequence[int], ngram: int) -> float:
    """Share of the n-grams that were there before, 0-1; 0 where the text is shorter than one.

    TRL's `get_repetition_penalty_reward` is `max_penalty` times this.
    """
    count = len(token_ids) - ngram + 1
    if count <= 0:
        return 0.0
    return 1 - len({tuple(token_ids[at : at + ngram]) for at in range(count)}) / count


class Repetition(EpisodeTerm):
    """Takes `weight` times the share of the sampled n-grams that the policy wrote before."""

    name: Literal["repetition"] = "repetition"
    ngram: int = Field(default=8, ge=1)
    """Tokens that are compared at once. Calls repeat the tags around them: shorter n-grams punish
    any second call."""
    weight: float = Field(default=0.2, gt=0)
    """What is taken where everything is repetition."""

    def span(self, context: TermContext) -> Span:
        """See `RewardTerm`."""
        del context
        return Span(-self.weight, 0.0)

    def payment(self, episode: EpisodeFacts, context: TermContext) -> float:
        """See `EpisodeTerm`."""
        del context
        return -self.weight * repeated_share(episode.action_token_ids, self.ngram)

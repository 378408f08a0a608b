"""A penalty on repeated n-grams of tokens (Yeo et al. 2025, arXiv:2502.03373, app. B; TRL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import EpisodeFacts, EpisodeTerm, Span, TermContext


def repeated_share(token_ids: Sequence[int], ngram: int) -> float:
    """Return the share of n-grams that occurred before, 0-1; 0 for a text shorter than one.

    TRL's `get_repetition_penalty_reward` is `max_penalty` times this.
    """
    count = len(token_ids) - ngram + 1
    if count <= 0:
        return 0.0
    return 1 - len({tuple(token_ids[at : at + ngram]) for at in range(count)}) / count


class Repetition(EpisodeTerm):
    """Subtracts `weight` times the share of the sampled n-grams that the policy wrote before."""

    name: Literal["repetition"] = "repetition"
    ngram: int = Field(default=8, ge=1)
    """Length of the compared n-grams, in tokens. Calls repeat the tags around them: shorter n-grams
    would penalise any second call."""
    weight: float = Field(default=0.2, gt=0)
    """Penalty if everything is repetition."""

    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""
        del context
        return Span(-self.weight, 0.0)

    def reward(self, episode: EpisodeFacts, context: TermContext) -> float:
        """Return the term's amount for `episode`, reward units."""
        del context
        return -self.weight * repeated_share(episode.action_token_ids, self.ngram)

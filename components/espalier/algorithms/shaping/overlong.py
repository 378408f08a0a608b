"""DAPO's soft overlong punishment (Yu et al. 2025, arXiv:2503.14476, eq. 13): linear."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import EpisodeFacts, EpisodeTerm, Span, TermContext


def overlong_penalty(
    length: int, *, max_length: int, buffer: int, penalty: float, floor: bool = True
) -> float:
    """Return the reward for a length, from 0 down to `-penalty`.

    Args:
        length: length of a response, tokens.
        max_length: length at which the whole penalty is reached; the paper's 20480.
        buffer: tokens before it in which the penalty rises linearly; the paper's 4096.
        penalty: the paper's 1, where an outcome is 1 or -1.
        floor: whether lengths beyond `max_length` cost no more than the penalty, as in the paper
            and in TRL (`get_soft_overlong_punishment`); verl (`DAPORewardManager`) does not stop.
    """
    over = length - (max_length - buffer)
    taken = max(0.0, over / buffer)
    return -penalty * (min(1.0, taken) if floor else taken)


class Overlong(EpisodeTerm):
    """Subtracts up to `share` of the outcome's range as an episode nears its token limit.

    The limit is `episode.max_tokens`, prompt and observations included. An episode that was cut
    off at its limit gets the whole penalty, even if some of its tokens were unused.
    """

    name: Literal["overlong"] = "overlong"
    buffer_share: float = Field(default=0.2, gt=0, le=1)
    """Share of the limit in which the penalty rises: DAPO's 4096 of 20480."""
    share: float = Field(default=0.5, gt=0, le=1)
    """The whole penalty, as a share of the outcome's range: DAPO's 1 where outcomes are -1 and 1.
    """

    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""
        return Span(-self.share * context.outcome_width, 0.0)

    def reward(self, episode: EpisodeFacts, context: TermContext) -> float:
        """Return the term's amount for `episode`, reward units."""
        return overlong_penalty(
            context.max_tokens if episode.is_truncated else episode.total_tokens,
            max_length=context.max_tokens,
            buffer=max(1, round(self.buffer_share * context.max_tokens)),
            penalty=self.share * context.outcome_width,
        )

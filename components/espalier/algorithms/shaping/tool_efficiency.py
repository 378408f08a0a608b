"""Tool efficiency: a right answer is worth more if none of its calls was wasted."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import CallFacts, EpisodeFacts, EpisodeTerm, Span, TermContext


class ToolEfficiency(EpisodeTerm):
    """Pays a right answer `weight` times the share of its calls that were useful.

    A call is useful if it succeeded and was not made before with the same arguments. A right answer
    without a call is paid in full. A wrong answer is paid nothing: else the policy would learn to
    call nothing, long before it knows an answer.
    """

    name: Literal["tool_efficiency"] = "tool_efficiency"
    weight: float = Field(default=0.1, gt=0)
    """Paid where every call was useful."""

    def span(self, context: TermContext) -> Span:
        """See `RewardTerm`."""
        del context
        return Span(0.0, self.weight)

    def payment(self, episode: EpisodeFacts, context: TermContext) -> float:
        """See `EpisodeTerm`."""
        del context
        return self.weight * useful_share(episode.calls) if episode.is_right else 0.0


def useful_share(calls: tuple[CallFacts, ...]) -> float:
    """Share of the calls that succeeded and were new, 0-1; 1 where none was made."""
    useful = {(call.name, call.arguments) for call in calls if call.succeeded}
    return len(useful) / len(calls) if calls else 1.0

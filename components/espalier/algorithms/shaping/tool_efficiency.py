"""Tool efficiency: a right answer gets more reward if none of its calls was useless."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import CallFacts, EpisodeFacts, EpisodeTerm, Span, TermContext


class ToolEfficiency(EpisodeTerm):
    """Rewards a right answer with `weight` times the share of its calls that were useful.

    A call is useful if it succeeded and was not made before with the same arguments. A right answer
    without a call gets the whole weight. A wrong answer gets nothing: otherwise the policy would
    learn to make no calls long before it can answer.
    """

    name: Literal["tool_efficiency"] = "tool_efficiency"
    weight: float = Field(default=0.1, gt=0)
    """Reward if every call was useful."""

    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""
        del context
        return Span(0.0, self.weight)

    def reward(self, episode: EpisodeFacts, context: TermContext) -> float:
        """Return the term's amount for `episode`, reward units."""
        del context
        return self.weight * useful_share(episode.calls) if episode.is_right else 0.0


def useful_share(calls: tuple[CallFacts, ...]) -> float:
    """Return the share of the calls that succeeded and were new, 0-1; 1 without calls."""
    useful = {(call.name, call.arguments) for call in calls if call.succeeded}
    return len(useful) / len(calls) if calls else 1.0

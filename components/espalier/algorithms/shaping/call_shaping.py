"""Shaping of tool calls by the turn: the right tool, repeated calls, tools that do not exist."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import CallFacts, EpisodeFacts, Span, TermContext, TurnTerm


class CallShaping(TurnTerm):
    """Rewards the first useful call; penalises repeated calls and calls that cannot be made.

    The sum so far stays between `-cap` and `cap` after every call, so that neither a long loop nor
    a series of calls adds up. Each amount belongs to the turn of its call.
    """

    name: Literal["call_shaping"] = "call_shaping"
    right_tools: tuple[str, ...] = ()
    """Names of tools whose first successful call is rewarded; empty: any tool's."""
    right: float = Field(default=0.1, ge=0)
    """Reward for that call, given once."""
    duplicate: float = Field(default=0.05, ge=0)
    """Penalty for each call that repeats the call before it, arguments included."""
    unknown: float = Field(default=0.3, ge=0)
    """Penalty for each call of a tool that does not exist."""
    cap: float = Field(default=0.3, gt=0)
    """Largest total reward, and largest total penalty, of one episode."""

    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""
        del context
        low = self.cap if self.duplicate or self.unknown else 0.0
        return Span(-low, min(self.cap, self.right))

    def turn_rewards(self, episode: EpisodeFacts) -> list[float]:
        """Return the term's amount for each message of the policy, reward units."""
        total, before, rewards = 0.0, None, list[float]()
        found = False
        for turn in episode.turns:
            start = total
            for call in turn:
                is_right = not found and self._is_right(call)
                found = found or is_right
                change = self.right * is_right - self.unknown * (not call.exists)
                change -= self.duplicate * (before == call[:2])
                total = max(-self.cap, min(self.cap, total + change))
                before = call[:2]
            rewards.append(total - start)
        return rewards

    def _is_right(self, call: CallFacts) -> bool:
        return call.succeeded and (not self.right_tools or call.name in self.right_tools)

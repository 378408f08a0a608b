r"""A graded score of an episode's form: thoughts, calls that can be made, a boxed answer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import EpisodeFacts, EpisodeTerm, Span, TermContext

_BOX = r"\boxed{"


class Form(EpisodeTerm):
    r"""Pays `weight` times a score between 0 and 1, for right and wrong answers alike.

    The score adds up: a thought anywhere, each call of a tool that exists, an answer in \boxed{},
    less each call that cannot be made and a last message that could not be read; then it is
    clamped. `reward.format` is the plain form of it: all or nothing, for an answer.
    """

    name: Literal["form"] = "form"
    weight: float = Field(default=0.2, gt=0)
    """Paid for a score of 1."""
    thought: float = Field(default=0.3, ge=0)
    """Added where any message says a thought."""
    valid_call: float = Field(default=0.1, ge=0)
    """Added for each call of a tool that exists."""
    invalid_call: float = Field(default=0.2, ge=0)
    """Taken for each call of a tool that does not, and for a message that could not be read."""
    boxed: float = Field(default=0.2, ge=0)
    """Added where the last message has a box."""

    def span(self, context: TermContext) -> Span:
        """See `RewardTerm`."""
        del context
        return Span(0.0, self.weight)

    def payment(self, episode: EpisodeFacts, context: TermContext) -> float:
        """See `EpisodeTerm`."""
        del context
        valid = sum(call.exists for call in episode.calls)
        invalid = len(episode.calls) - valid + episode.is_malformed
        score = self.thought * any(episode.thoughts) + self.boxed * (_BOX in episode.last_text)
        score += self.valid_call * valid - self.invalid_call * invalid
        return self.weight * max(0.0, min(1.0, score))

r"""A graded score of an episode's form: thoughts, calls that can be made, a boxed answer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.algorithms.shaping.term import EpisodeFacts, EpisodeTerm, Span, TermContext

_BOX = r"\boxed{"


class Form(EpisodeTerm):
    r"""Adds `weight` times a score between 0 and 1, for right and wrong answers alike.

    The score is a sum: plus for a thought in any message, for each call of an existing tool, and
    for an answer in \boxed{}; minus for each call that cannot be made and for a last message that
    could not be read. The sum is clamped. `reward.format` is the simple version, all or nothing,
    for an answer.
    """

    name: Literal["form"] = "form"
    weight: float = Field(default=0.2, gt=0)
    """Reward for a score of 1."""
    thought: float = Field(default=0.3, ge=0)
    """Added if any message has a thought."""
    valid_call: float = Field(default=0.1, ge=0)
    """Added for each call of a tool that exists."""
    invalid_call: float = Field(default=0.2, ge=0)
    """Subtracted for each call of a tool that does not exist, and for a message that could not be
    read."""
    boxed: float = Field(default=0.2, ge=0)
    """Added if the last message has a box with something in it."""

    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""
        del context
        return Span(0.0, self.weight)

    def reward(self, episode: EpisodeFacts, context: TermContext) -> float:
        """Return the term's amount for `episode`, reward units."""
        del context
        valid = sum(call.exists for call in episode.calls)
        invalid = len(episode.calls) - valid + episode.is_malformed
        score = self.thought * any(episode.thoughts) + self.boxed * _is_boxed(episode.last_text)
        score += self.valid_call * valid - self.invalid_call * invalid
        return self.weight * max(0.0, min(1.0, score))


def _is_boxed(text: str) -> bool:
    content, closed, _ = text.rpartition(_BOX)[2].partition("}")
    return _BOX in text and bool(closed and content.strip())

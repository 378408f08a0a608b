"""Majority consistency: answers that most attempts agree on (TTRL, arXiv:2504.16084)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.shaping.term import EpisodeFacts, GroupTerm, Span, TermContext


class Majority(GroupTerm):
    """Rewards the attempts whose answer is the most frequent one of their group.

    Answers are compared without case and spacing. If two answers are equally frequent, or none is
    given twice, no attempt is rewarded. Auxiliary: a group that agrees on a wrong answer is
    rewarded for it.
    """

    is_auxiliary: ClassVar[bool] = True
    name: Literal["majority"] = "majority"
    weight: float = Field(default=0.1, gt=0)
    """Reward for agreeing with the majority."""

    def span(self, context: TermContext) -> Span:
        """Return the range of the term."""
        del context
        return Span(0.0, self.weight)

    def rewards(self, group: Sequence[EpisodeFacts]) -> list[float]:
        """Return the term's amount for each episode of `group`, reward units."""
        answers = [_folded(episode.answer) for episode in group]
        common = Counter(answer for answer in answers if answer).most_common(2)
        counts = [count for _, count in common]
        if not counts or counts[0] == 1 or len(set(counts)) < len(counts):
            return [0.0] * len(group)
        return [self.weight * (answer == common[0][0]) for answer in answers]


def _folded(answer: str | None) -> str:
    return " ".join((answer or "").casefold().split())

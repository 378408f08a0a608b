"""Filters that rank groups by a statistic of their rewards (StarPO-S, arXiv:2504.20073, sec. 3.2).

The more the rewards of a task differ, the more uncertain the policy is about it, and the more there
is to learn. What differs between the rules is where the ranking is cut; all follow RAGEN's
`RewardRolloutFilter`, ties included: the earlier group goes first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Literal

from espalier.algorithms.filters.group_filter import GroupFilter, Selection

ZERO = 1e-10
"""A score up to here counts as 0, upstream's bound."""


class RankedGroups(GroupFilter):
    """Scores the groups, ranks them, and keeps one end of the ranking."""

    score: Literal["std", "mean"] = "std"
    """Of a group's rewards. "std" has ddof 1, and is what RAGEN calls reward variance."""
    keep: Literal["largest", "smallest"] = "largest"
    """Whether the groups of the largest or of the smallest scores are kept."""
    include_zero: bool = True
    """Whether groups of score 0 may be kept."""

    @abstractmethod
    def cut(self, scores: Mapping[int, float], num_groups: int) -> Sequence[int]:
        """The groups to keep, in order.

        Args:
            scores: score of each group that may be kept.
            num_groups: of all groups.
        """

    def select(self, groups: Sequence[Sequence[float]]) -> Selection:
        """See `GroupFilter`."""
        scores = {p: self.score_of(group) for p, group in enumerate(groups) if group}
        if not self.include_zero:
            scores = {p: score for p, score in scores.items() if abs(score) > ZERO}
        return Selection(tuple(self.cut(scores, len(groups))) if scores else ())

    def ranked(self, scores: Mapping[int, float]) -> list[int]:
        """The groups, those that are kept first at the front."""
        return sorted(scores, key=lambda p: scores[p], reverse=self.keep == "largest")

    def score_of(self, rewards: Sequence[float]) -> float:
        """What a group is ranked by."""
        if self.score == "mean":
            return fmean(rewards)
        # equal rewards are exactly 0, whatever their mean rounds to
        return stdev(rewards) if min(rewards) < max(rewards) else 0.0

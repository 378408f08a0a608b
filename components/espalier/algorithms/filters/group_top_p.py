"""The fewest groups that hold a share p of all the score (RAGEN, strategy `top_p`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal

from pydantic import Field

from espalier.algorithms.filters.rule import RankedGroups


class GroupTopP(RankedGroups):
    """Takes groups from the top of the ranking until their weights reach `share` of the total.

    A share of 1 takes all. With linear weights, no group is kept if a group of score 0 comes before
    the share is reached.
    """

    name: Literal["group_top_p"] = "group_top_p"
    share: float = Field(default=0.9, gt=0, le=1)
    """Share of the sum of all weights that the kept groups reach."""
    weights: Literal["linear", "softmax"] = "linear"
    """Weight of a group: its score, or the softmax of it (or of its negative for the smallest)."""
    slack: float = Field(default=0.01, ge=0)
    """How far linear weights may stay below the share, in units of the score."""

    def cut(self, scores: Mapping[int, float], num_groups: int) -> Sequence[int]:
        """Return the groups to keep, in order."""
        if self.share >= 1:
            return list(scores)
        ranked = self.ranked(scores)
        if self.weights == "softmax":
            return ranked[: self._softmax_count([scores[p] for p in ranked])]
        return ranked[: self._linear_count([scores[p] for p in ranked])]

    def _linear_count(self, scores: Sequence[float]) -> int:
        target = self.share * math.fsum(scores) - self.slack
        reached = 0.0
        for count, score in enumerate(scores):
            if reached >= target:
                return count
            if score <= 0:
                return 0
            reached += score
        return len(scores) if reached >= target else 0

    def _softmax_count(self, scores: Sequence[float]) -> int:
        sign = 1 if self.keep == "largest" else -1
        weights = [math.exp(sign * (score - scores[0])) for score in scores]
        target = self.share * math.fsum(weights)
        reached = list(accumulate(weights))
        return next(
            (n for n, sum_so_far in enumerate(reached, 1) if sum_so_far >= target), len(scores)
        )

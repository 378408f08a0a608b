"""Groups that come close to the best one (RAGEN, strategy `min_p`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from espalier.algorithms.filters.ranked_groups import ZERO, RankedGroups


class GroupMinP(RankedGroups):
    """Keeps groups of at least `ratio` times the largest score, in the order they came in.

    Of the smallest, those of at most the smallest score divided by `ratio`.
    """

    name: Literal["group_min_p"] = "group_min_p"
    ratio: float = Field(default=0.8, gt=0, le=1)
    """Of the largest score, the least that is kept."""

    def cut(self, scores: Mapping[int, float], num_groups: int) -> Sequence[int]:
        """See `RankedGroups`."""
        if self.keep == "largest":
            floor = self.ratio * max(scores.values()) - ZERO
            return [p for p, score in scores.items() if score >= floor]
        ceiling = min(scores.values()) / self.ratio + ZERO
        return [p for p, score in scores.items() if score <= ceiling]

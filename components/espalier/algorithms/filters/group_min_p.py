"""Groups with scores close to the largest one (RAGEN, strategy `min_p`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from espalier.algorithms.filters.rule import ZERO, RankedGroups


class GroupMinP(RankedGroups):
    """Keeps groups with at least `ratio` times the largest score, in their original order.

    With `keep = "smallest"`, those with at most the smallest score divided by `ratio`.
    """

    name: Literal["group_min_p"] = "group_min_p"
    ratio: float = Field(default=0.8, gt=0, le=1)
    """The least score that is kept, relative to the largest score."""

    def cut(self, scores: Mapping[int, float], num_groups: int) -> Sequence[int]:
        """Return the groups to keep, in order."""
        if self.keep == "largest":
            floor = self.ratio * max(scores.values()) - ZERO
            return [p for p, score in scores.items() if score >= floor]
        ceiling = min(scores.values()) / self.ratio + ZERO
        return [p for p, score in scores.items() if score <= ceiling]

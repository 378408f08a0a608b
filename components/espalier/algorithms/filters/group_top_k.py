"""A fixed fraction of the groups (StarPO-S; RAGEN, strategy `top_k`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from espalier.algorithms.filters.rule import RankedGroups


class GroupTopK(RankedGroups):
    """Keeps the first `fraction` of all groups in the ranking, rounded down."""

    name: Literal["group_top_k"] = "group_top_k"
    fraction: float = Field(default=0.25, gt=0, le=1)
    """Fraction of the groups that is kept; StarPO-S's value."""
    at_least: Literal[0, 1] = 1
    """Least number of groups kept; RAGEN's first version kept none where the fraction rounds to
    0."""

    def cut(self, scores: Mapping[int, float], num_groups: int) -> Sequence[int]:
        """Return the groups to keep, in order."""
        return self.ranked(scores)[: max(int(self.fraction * num_groups), self.at_least)]

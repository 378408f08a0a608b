"""A fixed number of groups (RAGEN, strategy `top_k_abs`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from espalier.algorithms.filters.rule import RankedGroups


class GroupTopKAbs(RankedGroups):
    """Keeps the first `count` groups of the ranking, or all if there are fewer."""

    name: Literal["group_top_k_abs"] = "group_top_k_abs"
    count: int = Field(ge=1)
    """Number of groups that are kept."""

    def cut(self, scores: Mapping[int, float], num_groups: int) -> Sequence[int]:
        """Return the groups to keep, in order."""
        return self.ranked(scores)[: self.count]

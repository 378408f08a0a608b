"""Tasks that are neither too hard nor solved (PRIME; Cui et al. 2025, arXiv:2502.01456)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from espalier.algorithms.filters.rule import GroupFilter, Selection


class DifficultyBand(GroupFilter):
    """Keeps groups whose pass rate lies between `low` and `high`, both included."""

    name: Literal["difficulty_band"] = "difficulty_band"
    low: float = Field(default=0.2, ge=0, le=1)
    """Lowest pass rate that is kept."""
    high: float = Field(default=0.8, ge=0, le=1)
    """Highest pass rate that is kept; the paper's online prompt filter keeps 0.2 to 0.8."""
    success_reward: float = 1.0
    """A trajectory passes with this reward or more."""
    max_regenerations: int = Field(default=0, ge=0)
    """How often other tasks may be drawn instead; 0 trains on fewer groups."""

    @model_validator(mode="after")
    def _the_band_is_not_empty(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"difficulty_band: low={self.low} is above high={self.high}")
        return self

    @property
    def regenerations(self) -> int:
        """How often the sampler may draw other tasks to replace dropped groups."""
        return self.max_regenerations

    def select(self, groups: Sequence[Sequence[float]]) -> Selection:
        """Return the groups that train."""
        return Selection(
            tuple(p for p, group in enumerate(groups) if group and self._admits(group))
        )

    def _admits(self, rewards: Sequence[float]) -> bool:
        passed = sum(reward >= self.success_reward for reward in rewards)
        return self.low <= passed / len(rewards) <= self.high

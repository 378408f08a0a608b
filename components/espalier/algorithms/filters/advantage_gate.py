"""Drops groups whose advantages are all negligible (prime-rl, `AdvRangeGate`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from espalier.algorithms.filters.rule import GroupFilter, Selection


class AdvantageGate(GroupFilter):
    """Drops a group if all its advantages are in the rejected range, both ends included.

    A group without advantages is admitted: its loss does not read them.
    """

    name: Literal["advantage_gate"] = "advantage_gate"
    reject_low: float = 0.0
    """Lower end of the rejected range."""
    reject_high: float = 0.0
    """Upper end of the rejected range; with the defaults, only groups of zeros are dropped."""
    max_regenerations: int = Field(default=0, ge=0)
    """How often other tasks may be drawn instead; 0 trains on fewer groups."""

    @model_validator(mode="after")
    def _the_range_is_not_empty(self) -> Self:
        if self.reject_low > self.reject_high:
            raise ValueError(
                f"advantage_gate: reject_low={self.reject_low} is above "
                f"reject_high={self.reject_high}"
            )
        return self

    @property
    def reads(self) -> Literal["rewards", "outcomes", "advantages"]:
        """The numbers that `select` gets; outcomes are rewards without any other term."""
        return "advantages"

    @property
    def regenerations(self) -> int:
        """How often the sampler may draw other tasks to replace dropped groups."""
        return self.max_regenerations

    def select(self, groups: Sequence[Sequence[float]]) -> Selection:
        """Return the groups that train; `groups` holds advantages."""
        return Selection(tuple(p for p, group in enumerate(groups) if self._admits(group)))

    def _admits(self, advantages: Sequence[float]) -> bool:
        inside = (self.reject_low <= value <= self.reject_high for value in advantages)
        return not advantages or not all(inside)

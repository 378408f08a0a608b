"""Groups of equal rewards: they carry no signal for a rule that compares within the group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from espalier.algorithms.filters.rule import GroupFilter, Selection

REGENERATIONS = 10
"""Default number of replacements, from DAPO's recipe (`max_num_gen_batches`)."""


class ZeroVariance(GroupFilter):
    """How to treat a group whose rewards are all equal, compared exactly.

    `skip` trains on fewer groups, `clamp` keeps the group in the loss's normaliser but sets its
    advantages to 0, `regenerate` samples other tasks in its place (dynamic sampling, DAPO; Yu et
    al. 2025, arXiv:2503.14476, sec. 3.2). A group of one is kept, as in DAPO.
    """

    name: Literal["zero_variance"] = "zero_variance"
    action: Literal["skip", "clamp", "regenerate"] = "skip"
    """Leave the group out, keep it without credit, or sample another task in its place."""
    max_regenerations: int = Field(default=REGENERATIONS, ge=1)
    """How often action "regenerate" may draw other tasks."""
    compares: Literal["rewards", "outcomes"] = "rewards"
    """Whole rewards, or only outcomes: then right answers of different lengths are equal, as in
    DAPO, whose groups must hold a right and a wrong answer."""

    @model_validator(mode="after")
    def _only_regeneration_has_a_limit(self) -> Self:
        if self.max_regenerations != REGENERATIONS and self.action != "regenerate":
            raise ValueError(
                f'zero_variance: action = "{self.action}" draws no replacements; leave '
                'max_regenerations out, or choose action = "regenerate"'
            )
        return self

    @property
    def reads(self) -> Literal["rewards", "outcomes", "advantages"]:
        """The numbers that `select` gets; outcomes are rewards without any other term."""
        return self.compares

    @property
    def regenerations(self) -> int:
        """How often the sampler may draw other tasks to replace dropped groups."""
        return self.max_regenerations if self.action == "regenerate" else 0

    def select(self, groups: Sequence[Sequence[float]]) -> Selection:
        """Return the groups that train."""
        scored = [p for p, group in enumerate(groups) if group]
        flat = {p for p in scored if len(groups[p]) > 1 and min(groups[p]) == max(groups[p])}
        if self.action == "clamp":
            return Selection(tuple(scored), frozenset(flat))
        return Selection(tuple(p for p in scored if p not in flat))

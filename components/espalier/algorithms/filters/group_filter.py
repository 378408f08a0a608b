"""What a filter of groups is: which of the groups that were sampled train."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from espalier.algorithms.rule import Rule


class Selection(NamedTuple):
    """Groups by their place in what `select` was given."""

    kept: tuple[int, ...]
    """Those that train, in the order in which the rule takes them."""
    silenced: frozenset[int] = frozenset()
    """Those of them whose advantages become 0: they count in the loss's normaliser alone."""


class GroupFilter(Rule):
    """Selects groups; the groups may be ragged."""

    reads: ClassVar[Literal["rewards", "advantages"]] = "rewards"
    """What `select` is given."""

    @property
    def regenerations(self) -> int:
        """How often the sampler may draw other tasks for groups that were not kept."""
        return 0

    @abstractmethod
    def select(self, groups: Sequence[Sequence[float]]) -> Selection:
        """Which groups train.

        Args:
            groups: for each group one number a trajectory, those that could not be scored left out.
        """

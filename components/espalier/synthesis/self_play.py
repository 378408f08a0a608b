"""What self-play needs of whoever poses tasks, and of whoever tries them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from types import MappingProxyType
from typing import NamedTuple, Protocol

from espalier.records import Task


class Posed(NamedTuple):
    """Tasks with a proven answer, and what was refused before anybody tried it."""

    tasks: Sequence[Task]
    refused: Mapping[str, int]
    """Reason -> proposals."""


class Order(NamedTuple):
    """What a phase asks for."""

    num_tasks: int
    failed: Sequence[Task]
    """Tasks that the policy of the last phase tried and never solved."""
    known: Sequence[Task]
    """Tasks that training draws from already: none of them is posed again."""
    seed: str
    """What the draw is a function of, beside the rest of the order."""
    earned: Mapping[str, float] = MappingProxyType({})
    """Signature -> mean reward of the tasks of that kind so far, under rules that pay one."""


class PosesTasks(Protocol):
    """Poses tasks of the training split."""

    def pose(self, order: Order) -> Posed:
        """At most `order.num_tasks` tasks that are none of `order.known`.

        Raises:
            EspalierError: nothing can be posed any more (a server is away, a budget spent).
        """
        ...


class Trial(NamedTuple):
    """What became of a posed task when the policy of the moment tried it."""

    task: Task
    attempts: int
    """Without those whose environment was lost."""
    successes: int
    value: float = math.nan
    """What a critic expects of it, in reward units; NaN where none was asked."""

    @property
    def pass_rate(self) -> float:
        """Share of the attempts that succeeded."""
        return self.successes / self.attempts


TriesTasks = Callable[[Sequence[Task], int], list[Trial]]
"""One trial a task, in their order, by the policy after so many optimizer steps."""


def weight_of(rewards: Sequence[float]) -> float:
    """How often tasks of a kind are posed: by the mean of what they earned.

    A kind that nobody tried counts as middling, and one that earned nothing is tried now and then,
    as the policy moves on. This draw stands in for the policy of a challenger.
    """
    return max(_LEAST_WEIGHT, mean(rewards)) if rewards else _UNTRIED_WEIGHT


_UNTRIED_WEIGHT = 0.5
_LEAST_WEIGHT = 0.02

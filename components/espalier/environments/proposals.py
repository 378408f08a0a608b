"""What self-play needs of a proposer of tasks, and of the policy that attempts them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from types import MappingProxyType
from typing import NamedTuple, Protocol

from espalier.records import Task


class ProposedTasks(NamedTuple):
    """Tasks with a proven answer, and what was refused before any attempt."""

    tasks: Sequence[Task]
    refused: Mapping[str, int]
    """Reason -> proposals."""


class ProposalRequest(NamedTuple):
    """What a phase of self-play asks a proposer for."""

    num_tasks: int
    failed: Sequence[Task]
    """Tasks that the policy of the last phase attempted and never solved."""
    known: Sequence[Task]
    """Tasks that training has already: none of them is proposed again."""
    seed: str
    """The draw depends on it and on the rest of the order alone."""
    earned: Mapping[str, float] = MappingProxyType({})
    """Signature -> mean reward of its tasks so far, under rules that reward the proposer."""


class TaskProposer(Protocol):
    """Proposes tasks of the training split."""

    def propose(self, order: ProposalRequest) -> ProposedTasks:
        """At most `order.num_tasks` tasks that are none of `order.known`.

        Raises:
            EspalierError: nothing can be proposed any more (no server, budget spent).
        """
        ...


class Trial(NamedTuple):
    """Attempts of the current policy at a proposed task."""

    task: Task
    attempts: int
    """Without attempts whose environment was lost."""
    successes: int
    value: float = math.nan
    """The critic's expected reward, in reward units; NaN without a critic."""

    @property
    def pass_rate(self) -> float:
        """Share of the attempts that succeeded."""
        return self.successes / self.attempts


AttemptTasks = Callable[[Sequence[Task], int], list[Trial]]
"""Tasks and a number of optimizer steps -> one trial per task, by the policy at that step."""


def weight_of(rewards: Sequence[float]) -> float:
    """Sampling weight of a kind of task: the mean reward that its tasks earned.

    An untried kind gets a middling weight, and one that earned nothing a small one, as the policy
    changes. Sampling by weight stands in for a challenger's policy.
    """
    return max(_LEAST_WEIGHT, mean(rewards)) if rewards else _UNTRIED_WEIGHT


_UNTRIED_WEIGHT = 0.5
_LEAST_WEIGHT = 0.02

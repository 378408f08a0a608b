"""The interface of self-play: proposers of tasks, and trials of the policy on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from types import MappingProxyType
from typing import NamedTuple, Protocol

from espalier.records import Task


class ProposedTasks(NamedTuple):
    """Tasks with a proven answer, and the proposals refused before any attempt."""

    tasks: Sequence[Task]
    refused: Mapping[str, int]
    """Reason -> number of proposals."""


class ProposalRequest(NamedTuple):
    """A request of one phase of self-play for new tasks."""

    num_tasks: int
    failed: Sequence[Task]
    """Tasks that the policy of the last phase attempted and never solved."""
    known: Sequence[Task]
    """Tasks that training has already; none of them is proposed again."""
    seed: str
    """Seed of the draw, which depends on the fields of the request alone."""
    earned: Mapping[str, float] = MappingProxyType({})
    """Signature -> mean proposer reward of its tasks so far, if the rule rewards the proposer."""


class TaskProposer(Protocol):
    """A source of new tasks for the training split."""

    def propose(self, order: ProposalRequest) -> ProposedTasks:
        """At most `order.num_tasks` tasks, none of which is in `order.known`.

        Raises:
            EspalierError: no further task can be proposed (no server, budget spent).
        """
        ...


class Trial(NamedTuple):
    """Attempts of the current policy at a proposed task."""

    task: Task
    attempts: int
    """Number of attempts, without those whose environment was lost."""
    successes: int
    value: float = math.nan
    """The critic's expected reward, in reward units; NaN without a critic."""

    @property
    def pass_rate(self) -> float:
        """Share of the attempts that succeeded."""
        return self.successes / self.attempts


AttemptTasks = Callable[[Sequence[Task], int], list[Trial]]
"""A function from tasks and an optimizer step to one trial per task, by the policy of that step."""


def weight_of(rewards: Sequence[float]) -> float:
    """Sampling weight of a kind of task: the mean proposer reward of its tasks.

    An untried kind gets a medium weight. A kind without reward keeps a small one, because the
    policy changes. Sampling by these weights takes the place of training a challenger policy.
    """
    return max(_LEAST_WEIGHT, mean(rewards)) if rewards else _UNTRIED_WEIGHT


_UNTRIED_WEIGHT = 0.5
_LEAST_WEIGHT = 0.02

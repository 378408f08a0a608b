"""Statistics over ragged groups of trajectories, and sums over the turns of a trajectory.

Axes: B trajectories, T token columns, K turns. `groups_B` is an int64 number per trajectory, in any
order; a group's statistic is repeated for each of its trajectories.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from espalier.algorithms.batch import CreditBatch
from espalier.algorithms.masking import kept

if TYPE_CHECKING:
    from torch import Tensor


GroupOfOne = Literal["reward", "zero"]
"""Advantage of a trajectory without siblings: its reward uncentred (verl), or 0 (TRL)."""


def group_size(groups_B: Tensor) -> Tensor:
    """[B] int64: number of trajectories in the group of each trajectory."""
    _, member_B, counts_P = groups_B.unique(return_inverse=True, return_counts=True)
    return counts_P[member_B]


def group_sum(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """Like `values_B` [B] or [B, ...]: sum over the group of each trajectory."""
    numbers_P, member_B = groups_B.unique(return_inverse=True)
    sums_P = values_B.new_zeros((len(numbers_P), *values_B.shape[1:]))
    return sums_P.index_add_(0, member_B, values_B)[member_B]


def group_mean(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """[B]: mean over the group of each trajectory."""
    return group_sum(values_B, groups_B) / group_size(groups_B)


def group_max(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """[B]: largest value in the group of each trajectory."""
    numbers_P, member_B = groups_B.unique(return_inverse=True)
    high_P = values_B.new_full((len(numbers_P),), -math.inf)
    return high_P.scatter_reduce_(0, member_B, values_B, "amax")[member_B]


def group_std(values_B: Tensor, groups_B: Tensor, *, ddof: int) -> Tensor:
    """[B]: standard deviation over the group of each trajectory; 0 in groups of `ddof` or fewer."""
    squared_B = (values_B - group_mean(values_B, groups_B)) ** 2
    freedom_B = (group_size(groups_B) - ddof).clamp(min=0)
    return (group_sum(squared_B, groups_B) / freedom_B.clamp(min=1)).sqrt() * (freedom_B > 0)


def is_zero_variance(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """[B] bool: whether all values of the trajectory's group are equal, compared exactly."""
    return group_max(values_B, groups_B) == -group_max(-values_B, groups_B)


def centre(values_B: Tensor, groups_B: Tensor, *, group_of_one: GroupOfOne) -> Tensor:
    """[B]: each value less the mean of its group; exactly 0 in a group of equal values.

    The float mean of equal rewards may differ from them in the last bit (ten rewards of 0.7), and a
    division by a small deviation would turn that into an advantage.
    """
    centred_B = values_B - group_mean(values_B, groups_B)
    centred_B = centred_B.masked_fill(is_zero_variance(values_B, groups_B), 0.0)
    if group_of_one == "zero":
        return centred_B
    return values_B.where(group_size(groups_B) == 1, centred_B)


class Turns(NamedTuple):
    """Positions of the turns in a batch; a trajectory need not have every turn number.

    turns_BT   -1 0 0 -1 1 -1
    exist_BK    1 1 0
    first_BK    1 4 0
    last_BK     2 4 0
    """

    exist_BK: Tensor
    """Bool: whether the trajectory has an action token in that turn."""
    first_BK: Tensor
    """Int64 column of its first action token; 0 where there is none."""
    last_BK: Tensor
    """Int64 column of its last action token; 0 where there is none."""
    mask_BT: Tensor
    """Bool: the action mask."""
    number_BT: Tensor
    """Int64 turn of an action token; 0 on other tokens, whose values are then masked."""

    def total(self, values_BT: Tensor) -> Tensor:
        """[B, K]: sum over the action tokens of each turn."""
        totals_BK = values_BT.new_zeros(self.exist_BK.shape)
        return totals_BK.scatter_add_(1, self.number_BT, kept(values_BT, self.mask_BT))

    def at(self, column_BK: Tensor, values_BT: Tensor) -> Tensor:
        """[B, K]: the value in one column of each turn, 0 for a missing turn."""
        return kept(values_BT.gather(1, column_BK), self.exist_BK)

    def spread(self, values_BK: Tensor) -> Tensor:
        """[B, T]: each action token gets the value of its turn, 0 elsewhere."""
        return kept(values_BK.gather(1, self.number_BT), self.mask_BT)


def locate_turns(batch: CreditBatch) -> Turns:
    """The turns that `batch.turns_BT` numbers."""
    assert batch.turns_BT is not None
    mask_BT = batch.action_mask_BT
    number_BT = batch.turns_BT.masked_fill(~mask_BT, 0)
    # columns count from 1 here, so that 0 means no token
    column_BT = mask_BT.new_ones(mask_BT.shape).cumsum(dim=1)
    beyond = mask_BT.shape[1] + 1
    shape = (len(mask_BT), int(number_BT.max()) + 1)
    first_BK = column_BT.new_full(shape, beyond)
    first_BK.scatter_reduce_(1, number_BT, column_BT.masked_fill(~mask_BT, beyond), "amin")
    last_BK = column_BT.new_zeros(shape)
    last_BK.scatter_reduce_(1, number_BT, column_BT * mask_BT, "amax")
    exist_BK = last_BK > 0
    return Turns(
        exist_BK,
        (first_BK - 1).masked_fill(~exist_BK, 0),
        (last_BK - 1).clamp(min=0),
        mask_BT,
        number_BT,
    )

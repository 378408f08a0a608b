"""Statistics of groups that may be ragged: one number a trajectory, the same for all of a group.

Axes: B trajectories. `groups_B` is an int64 number a trajectory, in any order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

GroupOfOne = Literal["reward", "zero"]
"""What a trajectory without siblings gets: its reward uncentred (verl), or nothing (TRL)."""


def group_size(groups_B: Tensor) -> Tensor:
    """[B] int64: how many trajectories the group of each has."""
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

    The float mean of equal rewards may differ from them in the last bit (ten rewards of 0.7), which
    a division by a small deviation would turn into credit.
    """
    centred_B = values_B - group_mean(values_B, groups_B)
    centred_B = centred_B.masked_fill(is_zero_variance(values_B, groups_B), 0.0)
    if group_of_one == "zero":
        return centred_B
    return values_B.where(group_size(groups_B) == 1, centred_B)

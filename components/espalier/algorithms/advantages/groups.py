"""Statistics of groups that may be ragged: one number a trajectory, the same for all of a group.

Axes: B trajectories. `groups_B` is an int64 number a trajectory, in any order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def group_size(groups_B: Tensor) -> Tensor:
    """[B] int64: how many trajectories the group of each has."""
    _, member_B, counts_P = groups_B.unique(return_inverse=True, return_counts=True)
    return counts_P[member_B]


def group_mean(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """[B]: mean over the group of each trajectory."""
    _, member_B, counts_P = groups_B.unique(return_inverse=True, return_counts=True)
    sums_P = values_B.new_zeros(len(counts_P)).index_add_(0, member_B, values_B)
    return (sums_P / counts_P)[member_B]


def group_std(values_B: Tensor, groups_B: Tensor, *, ddof: int) -> Tensor:
    """[B]: standard deviation over the group of each trajectory; 0 in groups of `ddof` or fewer."""
    squared_B = (values_B - group_mean(values_B, groups_B)) ** 2
    size_B = group_size(groups_B)
    variance_B = group_mean(squared_B, groups_B) * size_B / (size_B - ddof).clamp(min=1)
    return variance_B.sqrt() * (size_B > ddof)


def is_zero_variance(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """[B] bool: whether all values of the trajectory's group are equal, compared exactly."""
    _, member_B, counts_P = groups_B.unique(return_inverse=True, return_counts=True)
    low_P = values_B.new_full((len(counts_P),), math.inf)
    high_P = -low_P
    low_P.scatter_reduce_(0, member_B, values_B, "amin")
    high_P.scatter_reduce_(0, member_B, values_B, "amax")
    return (low_P == high_P)[member_B]

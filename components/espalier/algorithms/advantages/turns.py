"""From tokens to turns and back. Axes: B trajectories, T tokens, K turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from espalier.algorithms.batch import CreditBatch
from espalier.algorithms.masking import kept

if TYPE_CHECKING:
    from torch import Tensor


class Turns(NamedTuple):
    """Where the turns of a batch lie; a trajectory need not have every number.

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
        """[B, K]: what stands in one column of each turn, 0 for a missing turn."""
        return kept(values_BT.gather(1, column_BK), self.exist_BK)

    def spread(self, values_BK: Tensor) -> Tensor:
        """[B, T]: the value of its turn for every action token, 0 elsewhere."""
        return kept(values_BK.gather(1, self.number_BT), self.mask_BT)


def locate_turns(batch: CreditBatch) -> Turns:
    """The turns that `batch.turns_BT` numbers."""
    assert batch.turns_BT is not None
    mask_BT = batch.action_mask_BT
    number_BT = batch.turns_BT.masked_fill(~mask_BT, 0)
    # columns count from 1 here, so that 0 stands for none
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

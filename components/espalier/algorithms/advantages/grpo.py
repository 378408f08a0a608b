"""Group-relative advantages (Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from espalier.algorithms.advantages.rules import OutcomeRule
from espalier.algorithms.advantages.segments import GroupOfOne, centre, group_size, group_std
from espalier.algorithms.batch import CreditBatch

if TYPE_CHECKING:
    from torch import Tensor


class Grpo(OutcomeRule):
    """Reward centred on its group and divided by a standard deviation plus `std_eps`.

    Upstream settings: verl as defaulted; verl's vectorised form `std_floor=1e-3`; TRL
    `std_eps=1e-4, group_of_one="zero"`.
    """

    name: Literal["grpo"] = "grpo"
    scale: Literal["group", "batch"] = "group"
    """Whether the group's or the batch's deviation divides; the batch's is TRL's option (Liu et al.
    2025, arXiv:2508.08221)."""
    std_ddof: Literal[0, 1] = 1
    """1 as in verl and TRL; 0 is the population form."""
    std_eps: float = Field(default=1e-6, gt=0)
    """verl adds 1e-6, TRL 1e-4."""
    std_floor: float = Field(default=0.0, ge=0)
    """Smallest deviation that divides, so that almost equal rewards are not amplified."""
    group_of_one: GroupOfOne = "reward"
    """Advantage of a trajectory without siblings: its uncentred "reward" (verl), or "zero"
    (TRL)."""

    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """Return [B, T], 0 outside the action mask; an outcome of NaN is missing.

        One number for every action token of a trajectory.
        """
        groups_B = batch.groups_B
        centred_B = centre(outcomes_B, groups_B, group_of_one=self.group_of_one)
        whole_B = groups_B.new_zeros(groups_B.shape)
        scale_B = groups_B if self.scale == "group" else whole_B
        std_B = group_std(outcomes_B, scale_B, ddof=self.std_ddof).clamp(min=self.std_floor)
        # verl takes 1 for the deviation of a single reward
        std_B = std_B.masked_fill(group_size(scale_B) == 1, 1.0)
        return batch.spread(centred_B / (std_B + self.std_eps))

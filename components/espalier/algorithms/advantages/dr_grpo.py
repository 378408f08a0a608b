"""GRPO done right: centred rewards without a divisor (Liu et al. 2025, arXiv:2503.20783)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from espalier.algorithms.advantages.rules import OutcomeRule
from espalier.algorithms.advantages.segments import GroupOfOne, centre
from espalier.algorithms.batch import CreditBatch

if TYPE_CHECKING:
    from torch import Tensor


class DrGrpo(OutcomeRule):
    """Reward minus the mean of its group: nearly solved or hopeless tasks get no extra weight.

    verl's GRPO with `norm_adv_by_std_in_grpo=False`; TRL's with `scale_rewards="none"` is
    `group_of_one="zero"`.
    """

    name: Literal["dr_grpo"] = "dr_grpo"
    group_of_one: GroupOfOne = "reward"
    """Advantage of a trajectory without siblings: its uncentred "reward" (verl), or "zero"
    (TRL)."""

    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """Return [B, T], 0 outside the action mask; an outcome of NaN is missing.

        One number for every action token of a trajectory.
        """
        return batch.spread(centre(outcomes_B, batch.groups_B, group_of_one=self.group_of_one))

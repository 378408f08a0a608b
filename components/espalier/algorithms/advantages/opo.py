"""On-policy RL with the optimal reward baseline (Hao et al. 2025, arXiv:2505.23585)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from espalier.algorithms.advantages.rules import OutcomeRule
from espalier.algorithms.advantages.segments import group_size, group_sum, is_zero_variance
from espalier.algorithms.batch import CreditBatch

if TYPE_CHECKING:
    from torch import Tensor


class Opo(OutcomeRule):
    """Reward minus its group's mean, weighted by the number of action tokens.

    This baseline has the least variance if squared gradients grow with the length. A trajectory
    without siblings keeps its reward (verl).
    """

    name: Literal["opo"] = "opo"

    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """Return [B, T], 0 outside the action mask; an outcome of NaN is missing.

        One number for every action token of a trajectory.
        """
        groups_B = batch.groups_B
        length_B = batch.action_mask_BT.sum(dim=1).to(outcomes_B.dtype)
        tokens_B = group_sum(length_B, groups_B).clamp(min=1)
        advantages_B = outcomes_B - group_sum(length_B * outcomes_B, groups_B) / tokens_B
        advantages_B = advantages_B.masked_fill(is_zero_variance(outcomes_B, groups_B), 0.0)
        return batch.spread(outcomes_B.where(group_size(groups_B) == 1, advantages_B))

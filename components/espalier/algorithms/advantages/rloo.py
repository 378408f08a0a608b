"""REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv:2402.14740)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from espalier.algorithms.advantages.rules import OutcomeRule
from espalier.algorithms.advantages.segments import GroupOfOne, centre, group_size
from espalier.algorithms.batch import CreditBatch
from espalier.algorithms.masking import standardize

if TYPE_CHECKING:
    from torch import Tensor

STD_EPS = 1e-4
"""Added to the batch's deviation, as in TRL."""


class Rloo(OutcomeRule):
    """Reward minus the mean of the other rewards of its group.

    Upstream settings: verl as defaulted; verl's vectorised form and TRL `group_of_one="zero"`.
    TRL's beta is a k1 penalty, which the rewards already include.
    """

    name: Literal["rloo"] = "rloo"
    reward_clip: tuple[float, float] | None = None
    """Bounds of an outcome, reward units."""
    normalize: bool = False
    """Standardise over the batch (TRL's option), without trajectories that have no siblings."""
    group_of_one: GroupOfOne = "reward"
    """Advantage of a trajectory without siblings: its uncentred "reward" (verl), or "zero"
    (TRL)."""

    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """Return [B, T], 0 outside the action mask; an outcome of NaN is missing.

        One number for every action token of a trajectory.
        """
        if self.reward_clip is not None:
            outcomes_B = outcomes_B.clamp(*self.reward_clip)
        centred_B = centre(outcomes_B, batch.groups_B, group_of_one=self.group_of_one)
        size_B = group_size(batch.groups_B)
        # r - (sum - r) / (n - 1) = (r - mean) n / (n - 1)
        advantages_B = centred_B * size_B / (size_B - 1).clamp(min=1)
        if self.normalize:
            compared_B = size_B > 1
            normalized_N = standardize(advantages_B[compared_B], eps=STD_EPS)
            advantages_B = advantages_B.masked_scatter(compared_B, normalized_N)
        return batch.spread(advantages_B)

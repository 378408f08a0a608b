"""REINFORCE++ with a group baseline (Hu et al. 2025, arXiv:2501.03262)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from espalier.algorithms.advantages.rules import OutcomeRule
from espalier.algorithms.advantages.segments import centre
from espalier.algorithms.batch import CreditBatch
from espalier.algorithms.masking import whiten

if TYPE_CHECKING:
    from torch import Tensor


class ReinforcePlusPlusBaseline(OutcomeRule):
    """Reward minus the mean of its group, whitened over all action tokens of the batch.

    A long trajectory counts for more in the batch's mean. One without siblings keeps its reward
    before whitening (verl).
    """

    name: Literal["reinforce_plus_plus_baseline"] = "reinforce_plus_plus_baseline"

    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """Return [B, T], 0 outside the action mask; an outcome of NaN is missing.

        One number for every action token of a trajectory.
        """
        centred_B = centre(outcomes_B, batch.groups_B, group_of_one="reward")
        return whiten(batch.spread(centred_B), batch.action_mask_BT)

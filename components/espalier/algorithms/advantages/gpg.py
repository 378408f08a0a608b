"""Group policy gradient (Chu et al. 2025, arXiv:2504.02546)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from espalier.algorithms.advantages.rules import OutcomeRule
from espalier.algorithms.advantages.segments import centre
from espalier.algorithms.batch import CreditBatch

if TYPE_CHECKING:
    from torch import Tensor


class Gpg(OutcomeRule):
    """Centred reward times alpha / `normalizer`, which compensates trajectories with reward 0.

    alpha is the size of the batch over the number of rewards that are not 0, as verl counts it.
    A trajectory without siblings keeps its reward (verl).
    """

    name: Literal["gpg"] = "gpg"
    normalizer: float = Field(default=1.0, gt=0)
    """F_norm in the paper."""

    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """Return [B, T], 0 outside the action mask; an outcome of NaN is missing.

        One number for every action token of a trajectory.
        """
        alpha = len(outcomes_B) / max(int(outcomes_B.count_nonzero()), 1)
        centred_B = centre(outcomes_B, batch.groups_B, group_of_one="reward")
        return batch.spread(alpha * centred_B / self.normalizer)

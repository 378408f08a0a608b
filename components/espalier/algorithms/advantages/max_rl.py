"""Maximum-likelihood RL (arXiv:2602.02710): centred reward over the mean reward of its group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from espalier.algorithms.advantages.rules import OutcomeRule
from espalier.algorithms.advantages.segments import centre, group_mean
from espalier.algorithms.batch import CreditBatch

if TYPE_CHECKING:
    from torch import Tensor


class MaxRl(OutcomeRule):
    """(r - mean) / mean, so that a task solved with chance p weighs about 1/p.

    Meant for rewards of 0 and 1. A group whose mean is not positive has no success, and gets 0
    (prime-rl).
    """

    name: Literal["max_rl"] = "max_rl"

    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """Return [B, T], 0 outside the action mask; an outcome of NaN is missing.

        One number for every action token of a trajectory.
        """
        mean_B = group_mean(outcomes_B, batch.groups_B)
        centred_B = centre(outcomes_B, batch.groups_B, group_of_one="zero")
        has_success_B = mean_B > 0
        return batch.spread(centred_B / mean_B.where(has_success_B, 1.0) * has_success_B)

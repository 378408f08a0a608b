"""GRPO for pass@k: an advantage only for the best of a group (Tang et al., arXiv:2503.19595)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from espalier.algorithms.advantages.rules import OutcomeRule
from espalier.algorithms.advantages.segments import group_std
from espalier.algorithms.batch import CreditBatch

if TYPE_CHECKING:
    from torch import Tensor


class GrpoPassK(OutcomeRule):
    """The best of a group gets its lead over the second best, all others 0; k is the group size.

    The lead is how much the group's best reward would fall without it. A tie at the top has a lead
    of 0; a group of one gets 0 (verl refuses it).
    """

    name: Literal["grpo_pass_k"] = "grpo_pass_k"
    scale: Literal["group", "none"] = "group"
    """Whether the lead is divided by the group's standard deviation (ddof 1) plus `std_eps`."""
    std_eps: float = Field(default=1e-6, gt=0)
    """Added to that deviation."""

    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """Return [B, T], 0 outside the action mask; an outcome of NaN is missing.

        One number for every action token of a trajectory.
        """
        leads_B = outcomes_B.new_zeros(outcomes_B.shape)
        for group in batch.groups_B.unique():
            rows_G = (batch.groups_B == group).nonzero()[:, 0]
            if len(rows_G) > 1:
                best_2, place_2 = outcomes_B[rows_G].topk(2)
                leads_B[rows_G[place_2[0]]] = best_2[0] - best_2[1]
        if self.scale == "group":
            leads_B = leads_B / (group_std(outcomes_B, batch.groups_B, ddof=1) + self.std_eps)
        return batch.spread(leads_B)

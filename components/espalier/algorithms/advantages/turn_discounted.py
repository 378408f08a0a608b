"""Discounted rewards of turns, compared in the group (Baronio et al. 2025, arXiv:2507.11948)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from espalier.algorithms.advantages.segments import centre, group_std, locate_turns
from espalier.algorithms.batch import Credit, CreditBatch, CreditRule
from espalier.algorithms.masking import discounted_to_go

if TYPE_CHECKING:
    from torch import Tensor


class TurnDiscounted(CreditRule):
    """Each turn gets the discounted sum of its and later turns' rewards, normalised as in GRPO.

    A turn without others to compare with gets 0.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"turns_BT"})
    name: Literal["turn_discounted"] = "turn_discounted"
    gamma: float = Field(default=0.4, ge=0, le=1)
    """Discount of a turn; the paper's value."""
    compared: Literal["all_turns", "same_turn"] = "all_turns"
    """Compare with all turns of the group's trajectories (the paper's), or with those of the same
    turn number (MT-GRPO; Zeng et al. 2025, arXiv:2505.11821)."""
    scale: Literal["group", "none"] = "group"
    """Whether to divide by the standard deviation (ddof 1) of the compared turns plus `std_eps`."""
    std_eps: float = Field(default=1e-6, gt=0)
    """Added to that deviation."""

    def credit(self, batch: CreditBatch) -> Credit:
        """Return the advantages, and the discounted sums as returns."""
        turns = locate_turns(batch)
        exist_BK = turns.exist_BK
        returns_BK = discounted_to_go(turns.total(batch.rewards_BT), exist_BK, self.gamma)
        advantages_BK = returns_BK.new_zeros(returns_BK.shape)
        pools_N = self._pools_BK(batch.groups_B, exist_BK)[exist_BK]
        advantages_BK[exist_BK] = self._normalized(returns_BK[exist_BK], pools_N)
        return Credit(turns.spread(advantages_BK), turns.spread(returns_BK))

    def _pools_BK(self, groups_B: Tensor, exist_BK: Tensor) -> Tensor:
        """Return [B, K] int64: turns with equal numbers are compared with each other."""
        if self.compared == "all_turns":
            return groups_B[:, None].expand_as(exist_BK)
        number_BK = exist_BK.new_ones(exist_BK.shape).cumsum(dim=1) - 1
        return groups_B[:, None] * exist_BK.shape[1] + number_BK

    def _normalized(self, returns_N: Tensor, pools_N: Tensor) -> Tensor:
        centred_N = centre(returns_N, pools_N, group_of_one="zero")
        if self.scale == "none":
            return centred_N
        return centred_N / (group_std(returns_N, pools_N, ddof=1) + self.std_eps)

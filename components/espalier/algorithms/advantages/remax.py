"""ReMax: the greedy answer's reward as baseline (Li et al. 2023, arXiv:2310.10505)."""

from __future__ import annotations

from typing import ClassVar, Literal

from espalier.algorithms.batch import Credit, CreditBatch, CreditRule
from espalier.algorithms.masking import discounted_to_go


class ReMax(CreditRule):
    """Reward to go minus the reward of the greedy trajectory of the same task."""

    needs: ClassVar[frozenset[str]] = frozenset({"baseline_rewards_B"})
    compares_groups: ClassVar[bool] = False
    name: Literal["remax"] = "remax"

    def credit(self, batch: CreditBatch) -> Credit:
        """Return the advantages; groups are not used."""
        assert batch.baseline_rewards_B is not None
        returns_BT = discounted_to_go(batch.rewards_BT, batch.action_mask_BT, 1.0)
        return Credit(returns_BT - batch.spread(batch.baseline_rewards_B), returns_BT)

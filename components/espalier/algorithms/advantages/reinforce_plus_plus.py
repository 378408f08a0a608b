"""REINFORCE++ (Hu et al. 2025, arXiv:2501.03262): discounted rewards, whitened over the batch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.batch import Credit, CreditBatch, CreditRule
from espalier.algorithms.masking import discounted_to_go, kept, whiten


class ReinforcePlusPlus(CreditRule):
    """Reward to go, discounted by the token, whitened over all action tokens of the batch."""

    compares_groups: ClassVar[bool] = False
    name: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of a token."""
    at_observations: Literal["carry", "reset"] = "carry"
    """Whether the sum continues at observations. verl resets it at each masked token: actions
    before an observation get no credit for rewards after it."""

    def credit(self, batch: CreditBatch) -> Credit:
        """Return the whitened advantages and the returns."""
        mask_BT = batch.action_mask_BT
        decay_BT = self.gamma * batch.rewards_BT.new_ones(mask_BT.shape)
        if self.at_observations == "reset":
            decay_BT = kept(decay_BT, mask_BT.roll(-1, dims=1))
        returns_BT = discounted_to_go(batch.rewards_BT, mask_BT, decay_BT)
        return Credit(whiten(returns_BT, mask_BT), returns_BT)

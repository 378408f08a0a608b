"""Generalised advantage estimation by the token (Schulman et al. 2015, arXiv:1506.02438)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from espalier.algorithms.advantages.rules import CriticRule
from espalier.algorithms.batch import Credit, CreditBatch
from espalier.algorithms.masking import generalized_advantages

if TYPE_CHECKING:
    from torch import Tensor


class Gae(CriticRule):
    """GAE with a token as the step; observations are skipped, without discount (verl)."""

    name: Literal["gae"] = "gae"
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """1 (verl's default): reward to go minus the value; 0: the one-step error."""

    def estimate(self, batch: CreditBatch, values_BT: Tensor) -> Credit:
        """Return unwhitened advantages, and returns; values outside the mask are arbitrary."""
        advantages_BT = generalized_advantages(
            batch.rewards_BT,
            values_BT,
            batch.action_mask_BT,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        return Credit(advantages_BT, advantages_BT + values_BT)

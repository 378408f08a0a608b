"""VAPO's GAE: lambda grows with the length (Yue et al. 2025, arXiv:2504.05118, sec. 4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from espalier.algorithms.advantages.rules import CriticRule
from espalier.algorithms.batch import Credit, CreditBatch
from espalier.algorithms.masking import generalized_advantages

if TYPE_CHECKING:
    from torch import Tensor


class LengthAdaptiveGae(CriticRule):
    """GAE with lambda = 1 - 1 / (alpha l) for a trajectory of l action tokens, and a least lambda.

    The sum of lambda^t is then alpha l, the same share of every trajectory. The critic is fitted
    with lambda 1 (decoupled GAE; Yuan et al. 2025, arXiv:2503.01491), which carries the reward to
    the first token without decay.
    """

    name: Literal["length_adaptive_gae"] = "length_adaptive_gae"
    alpha: float = Field(default=0.05, gt=0)
    """The paper's value, for responses of thousands of tokens."""
    min_lambda: float = Field(default=0.99, ge=0, le=1)
    """Least lambda, which short trajectories get (below 2,000 tokens with the defaults): the
    formula alone would give a policy that writes 20 tokens a lambda of 0. At 0.95, the first calls
    of an agent have next to no credit."""
    critic_lambda: float = Field(default=1.0, ge=0, le=1)
    """Lambda of the returns that the critic is fitted to."""

    def estimate(self, batch: CreditBatch, values_BT: Tensor) -> Credit:
        """Return unwhitened advantages, and returns; values outside the mask are arbitrary."""
        mask_BT, rewards_BT = batch.action_mask_BT, batch.rewards_BT
        length_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1).to(values_BT.dtype)
        lambda_B1 = (1 - 1 / (self.alpha * length_B1)).clamp(min=self.min_lambda)
        advantages_BT = generalized_advantages(
            rewards_BT, values_BT, mask_BT, gamma=self.gamma, gae_lambda=lambda_B1
        )
        for_critic_BT = generalized_advantages(
            rewards_BT, values_BT, mask_BT, gamma=self.gamma, gae_lambda=self.critic_lambda
        )
        return Credit(advantages_BT, for_critic_BT + values_BT)

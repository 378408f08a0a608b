"""The optimal token baseline (Li et al. 2026, arXiv:2602.07078), one for every token position."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from espalier.algorithms.advantages.segments import group_size, group_sum
from espalier.algorithms.batch import Credit, CreditBatch, CreditRule
from espalier.algorithms.masking import discounted_to_go, kept

if TYPE_CHECKING:
    from torch import Tensor

WEIGHT_EPS = 1e-8
"""Added to the sum of weights, as in verl."""


class OptimalTokenBaseline(CreditRule):
    """Reward to go minus its weighted mean over the group's tokens at the same position.

    A weight is the sum of 1 - 2 pi + sum pi^2 over the tokens so far: the squared gradient of the
    sampled tokens' log-probs with respect to the logits. A trajectory without siblings has no
    baseline.
    Upstream settings: verl's multi-turn form (`tir_optimal_token_baseline`) as defaulted; its
    `optimal_token_baseline` is `align="columns", alone="own_return"`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"behavior_logprobs_BT", "sum_pi_squared_BT"})
    name: Literal["otb"] = "otb"
    align: Literal["action_tokens", "columns"] = "action_tokens"
    """Which tokens share a position: those with the same index among action tokens, or in the same
    column."""
    alone: Literal["no_baseline", "own_return"] = "no_baseline"
    """Baseline at positions where only one trajectory of the group has a token: 0, or its own
    return."""

    def credit(self, batch: CreditBatch) -> Credit:
        """Return advantages, and rewards to go as returns."""
        assert batch.behavior_logprobs_BT is not None
        assert batch.sum_pi_squared_BT is not None
        mask_BT = batch.action_mask_BT
        returns_BT = discounted_to_go(batch.rewards_BT, mask_BT, 1.0)
        energy_BT = 1 - 2 * batch.behavior_logprobs_BT.exp() + batch.sum_pi_squared_BT
        weights_BT = kept(energy_BT, mask_BT).cumsum(dim=1) * mask_BT
        if self.align == "columns":
            baselines_BT = self._baselines(returns_BT, weights_BT, mask_BT, batch.groups_B)
        else:
            order_BT = (~mask_BT).int().argsort(dim=1, stable=True)
            aligned_BT = self._baselines(
                returns_BT.gather(1, order_BT),
                weights_BT.gather(1, order_BT),
                mask_BT.gather(1, order_BT),
                batch.groups_B,
            )
            baselines_BT = aligned_BT.new_zeros(mask_BT.shape).scatter_(1, order_BT, aligned_BT)
        return Credit((returns_BT - baselines_BT) * mask_BT, returns_BT)

    def _baselines(
        self, returns_BT: Tensor, weights_BT: Tensor, mask_BT: Tensor, groups_B: Tensor
    ) -> Tensor:
        weighted_BT = group_sum(returns_BT * weights_BT, groups_B)
        baselines_BT = weighted_BT / (group_sum(weights_BT, groups_B) + WEIGHT_EPS)
        without_BT = (group_size(groups_B) == 1)[:, None]
        if self.alone == "no_baseline":
            without_BT = without_BT | (group_sum(mask_BT.to(weights_BT.dtype), groups_B) == 1)
        return baselines_BT.masked_fill(without_BT, 0.0)

"""KL-Cov (Cui et al. 2025, arXiv:2505.22617)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.losses.rule import (
    PolicyLossRule,
    log_ratio,
    pick_highest,
    token_covariance,
    token_share,
    weighted,
)


class KlCov(PolicyLossRule):
    """The unclipped surrogate, plus a penalty |log r| on the tokens of highest covariance."""

    whole_minibatch: ClassVar[bool] = True
    name: Literal["kl_cov"] = "kl_cov"
    share: float = Field(default=2e-4, gt=0, le=1)
    """Share of the minibatch's tokens with the penalty, at least one; 2e-4 is the paper's for a 32
    B model."""
    coefficient: float = Field(default=1.0, gt=0)
    """Weight of |log r| on those tokens."""

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """Return the loss; metric: the share of tokens with the penalty."""
        mask_BT = batch.loss_mask_BT
        count = max(1, int(self.share * int(mask_BT.sum())))
        chosen_BT = pick_highest(token_covariance(batch), mask_BT, count)
        log_ratio_BT = log_ratio(batch)
        penalty_BT = self.coefficient * log_ratio_BT.abs() * chosen_BT
        loss_BT = weighted(-batch.advantages_BT * log_ratio_BT.exp() + penalty_BT, batch)
        loss = aggregate(aggregation, loss_BT, mask_BT, batch.totals)
        return PolicyLoss(loss, {"penalized_share": token_share(chosen_BT, batch)})

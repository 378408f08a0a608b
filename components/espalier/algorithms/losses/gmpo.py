"""Geometric-mean policy optimisation (Zhao et al. 2025, arXiv:2507.20673)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.losses.rule import PolicyLossRule, log_ratio, token_share
from espalier.algorithms.masking import row_means


class Gmpo(PolicyLossRule):
    """One ratio per sequence: the geometric mean of its tokens' ratios, each clipped by itself.

    Each token's log-ratio is clipped on the side towards which the advantage pushes. Advantages
    enter as their mean over the sequence, weights as their geometric mean (verl).
    """

    fixed_aggregation: ClassVar[Aggregation | None] = "row_mean_token_mean"
    name: Literal["gmpo"] = "gmpo"
    clip_low: float = Field(default=0.4, gt=0)
    """Lower bound of a token's log-ratio where the advantage is negative, nats; 0.4 is the paper's
    (e^-0.4, e^0.4)."""
    clip_high: float = Field(default=0.4, gt=0)
    """Upper bound of a token's log-ratio where the advantage is positive, nats."""

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """Return the loss; metric: the share of tokens that were clipped."""
        mask_BT = batch.loss_mask_BT
        log_ratio_BT = log_ratio(batch)
        bounded_BT = log_ratio_BT.clamp(-self.clip_low, self.clip_high)
        sign_BT = batch.advantages_BT.sign()
        held_BT = sign_BT * (log_ratio_BT - bounded_BT) > 0
        ratio_B = row_means(bounded_BT.where(held_BT, log_ratio_BT), mask_BT).exp()
        loss_B = -row_means(batch.advantages_BT, mask_BT) * ratio_B
        if batch.importance_weights_BT is not None:
            loss_B = loss_B * row_means(batch.importance_weights_BT.log(), mask_BT).exp()
        loss = aggregate(aggregation, loss_B[:, None].expand(mask_BT.shape), mask_BT, batch.totals)
        return PolicyLoss(loss, {"clipped_share": token_share(held_BT, batch)})

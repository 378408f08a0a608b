"""Variational sequence-level soft policy optimisation (Shen et al. 2026, arXiv:2602.10693)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.losses.rule import LOG_RATIO_BOUND, PolicyLossRule, log_ratio
from espalier.algorithms.masking import kept, row_means

if TYPE_CHECKING:
    from torch import Tensor

LOWEST_LOG_WEIGHT = math.log(1e-8)
"""TRL's floor; below it every kernel is 0."""


class Vespo(PolicyLossRule):
    """-phi(W) A log pi, W = exp(sum of the sequence's log-ratios), phi(W) = W^k e^(lambda (1 - W)).

    The kernel is 1 at W = 1 and decays on both sides. It is the whole off-policy correction:
    importance weights are not used with it, and the proximal policy should be the behaviour policy.
    """

    takes_weights: ClassVar[bool] = False
    name: Literal["vespo"] = "vespo"
    k_positive: float = Field(default=2.0, gt=0)
    """k of the kernel where A >= 0; defaults as in TRL."""
    lambda_positive: float = Field(default=3.0, gt=0)
    """Lambda of the kernel where A >= 0."""
    k_negative: float = Field(default=3.0, gt=0)
    """k of the kernel where A < 0."""
    lambda_negative: float = Field(default=2.0, gt=0)
    """Lambda of the kernel where A < 0."""

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """Return the loss; `kernel_mean` is the share of the mean kernel over all sequences."""
        mask_BT = batch.loss_mask_BT
        kernel_BT = self.kernel(batch)
        logprobs_BT = kept(batch.policy_logprobs_BT, mask_BT)
        loss_BT = -kernel_BT * batch.advantages_BT * logprobs_BT
        loss = aggregate(aggregation, loss_BT, mask_BT, batch.totals)
        kernels = row_means(kernel_BT, mask_BT).sum()
        return PolicyLoss(loss, {"kernel_mean": kernels / batch.totals.sequences})

    def kernel(self, batch: LossBatch) -> Tensor:
        """Return [B, T] phi of each token's sequence, by the sign of its advantage; no gradient."""
        log_ratio_BT = log_ratio(batch).detach()
        log_weight_B = log_ratio_BT.sum(dim=1).clamp(LOWEST_LOG_WEIGHT, LOG_RATIO_BOUND)
        log_weight_B1, weight_B1 = log_weight_B[:, None], log_weight_B.exp()[:, None]
        positive_B1 = self.k_positive * log_weight_B1 + self.lambda_positive * (1 - weight_B1)
        negative_B1 = self.k_negative * log_weight_B1 + self.lambda_negative * (1 - weight_B1)
        return positive_B1.where(batch.advantages_BT >= 0, negative_B1).exp()

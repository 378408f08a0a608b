"""Ratios of the policy to the policy that is improved on, and what every loss does with them.

Log-probs are masked first: an observation token's cannot reach a loss, a metric or a gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from espalier.algorithms.batch import LossBatch
from espalier.algorithms.masking import kept

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""verl's constant: exp(20) is far outside every clip, and keeps float32 finite."""


def log_ratio(batch: LossBatch, *, bound: float | None = None) -> Tensor:
    """[B, T] policy less proximal log-prob, nats, held inside +-`bound`; 0 outside the mask."""
    log_ratio_BT = kept(batch.policy_logprobs_BT - batch.proximal_logprobs_BT, batch.loss_mask_BT)
    return log_ratio_BT if bound is None else log_ratio_BT.clamp(-bound, bound)


def weighted(loss_BT: Tensor, batch: LossBatch) -> Tensor:
    """[B, T] loss of each token times its off-policy weight, if there are any."""
    weights_BT = batch.importance_weights_BT
    return loss_BT if weights_BT is None else loss_BT * weights_BT


def token_share(flags_BT: Tensor, batch: LossBatch) -> Tensor:
    """Share of the minibatch's tokens that have the flag and stand in this micro-batch."""
    return (flags_BT & batch.loss_mask_BT).sum() / batch.totals.tokens

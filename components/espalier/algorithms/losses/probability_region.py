"""Losses that keep the policy near the sampler by how far a token's probability moved.

A ratio judges rare tokens harshly and common ones hardly at all: from 1e-5 to 1e-4 is a ratio of
10, from 0.5 to 0.9 one of 1.8. The difference of probabilities is the token's part in the total
variation between the two distributions (Qi et al. 2026, arXiv:2602.04879).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.kl import token_kl
from espalier.algorithms.losses.ratios import token_share
from espalier.algorithms.masking import kept

if TYPE_CHECKING:
    from torch import Tensor


def probability_shift(batch: LossBatch) -> Tensor:
    """[B, T] policy less behaviour probability of each token; no gradient, 0 outside the mask."""
    assert batch.behavior_logprobs_BT is not None
    shift_BT = batch.policy_logprobs_BT.detach().exp() - batch.behavior_logprobs_BT.exp()
    return kept(shift_BT, batch.loss_mask_BT)


def region_loss(
    batch: LossBatch, aggregation: Aggregation, *, outside_BT: Tensor, kl_coefficient: float
) -> PolicyLoss:
    """-r A on tokens inside the region, plus `kl_coefficient` (log r)^2 on all; r to the sampler.

    Metrics: the share of tokens outside, and what the tokens outside and inside each contribute to
    the mean mismatch KL.
    """
    assert batch.behavior_logprobs_BT is not None
    mask_BT = batch.loss_mask_BT
    log_ratio_BT = kept(batch.policy_logprobs_BT - batch.behavior_logprobs_BT, mask_BT)
    surrogate_BT = -batch.advantages_BT * log_ratio_BT.exp()
    loss_BT = surrogate_BT.masked_fill(outside_BT, 0.0) + kl_coefficient * log_ratio_BT**2
    mismatch_BT = token_kl(-log_ratio_BT.detach(), estimator="k3")
    inside_BT, outside_BT = mask_BT & ~outside_BT, mask_BT & outside_BT
    metrics = {
        "outside_share": token_share(outside_BT, batch),
        "outside_mismatch_kl": kept(mismatch_BT, outside_BT).sum() / batch.totals.tokens,
        "inside_mismatch_kl": kept(mismatch_BT, inside_BT).sum() / batch.totals.tokens,
    }
    return PolicyLoss(aggregate(aggregation, loss_BT, mask_BT, batch.totals), metrics)

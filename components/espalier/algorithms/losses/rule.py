"""Base class of the policy losses, and what several of them share: ratios, covariance, regions.

Log-probs are masked first: an observation token's cannot reach a loss, a metric or a gradient.

Covariance (KL-Cov, Clip-Cov) marks the tokens that lower the entropy (Cui et al. 2025,
arXiv:2505.22617). Probability regions (DPPO, IPO) keep the policy near the sampler by how far a
token's probability moved: a ratio treats rare tokens harshly and common ones hardly at all (from
1e-5 to 1e-4 is a ratio of 10, from 0.5 to 0.9 one of 1.8), while the difference of probabilities is
the token's part in the total variation (Qi et al. 2026, arXiv:2602.04879).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import AlgorithmRule, LossBatch, PolicyLoss
from espalier.algorithms.masking import kept, masked_mean
from espalier.algorithms.regularizers import token_kl

if TYPE_CHECKING:
    from torch import Tensor


class PolicyLossRule(AlgorithmRule):
    """Base of the policy losses; a rule overrides the class variables that differ."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """Optional fields of `LossBatch` that it reads."""
    whole_minibatch: ClassVar[bool] = False
    """Whether it compares tokens across micro-batches, so that a minibatch cannot be split."""
    fixed_aggregation: ClassVar[Aggregation | None] = None
    """The aggregation that its formula implies; None leaves the choice to the profile."""
    has_ratio: ClassVar[bool] = True
    """Whether an importance ratio corrects for a policy that was another when it sampled."""
    clips_sequences: ClassVar[bool] = False
    """Whether its clip is on one ratio for a whole sequence, of which many leave a usual range."""
    takes_weights: ClassVar[bool] = True
    """Whether `importance_weights_BT` may be combined with the rule's own ratio."""

    @abstractmethod
    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """Return this micro-batch's share of the minibatch's loss."""


LOG_RATIO_BOUND = 20.0
"""verl's constant: exp(20) is far outside every clip, and keeps float32 finite."""


def log_ratio(batch: LossBatch, *, bound: float | None = LOG_RATIO_BOUND) -> Tensor:
    """Return [B, T] policy minus proximal log-prob, nats, within +-`bound`; 0 outside the mask.

    A token beyond the bound has no gradient.
    """
    log_ratio_BT = kept(batch.policy_logprobs_BT - batch.proximal_logprobs_BT, batch.loss_mask_BT)
    return log_ratio_BT if bound is None else log_ratio_BT.clamp(-bound, bound)


def weighted(loss_BT: Tensor, batch: LossBatch) -> Tensor:
    """[B, T] loss of each token times its off-policy weight, if the batch has weights."""
    weights_BT = batch.importance_weights_BT
    return loss_BT if weights_BT is None else loss_BT * weights_BT


def token_share(flags_BT: Tensor, batch: LossBatch) -> Tensor:
    """Return this micro-batch's flagged tokens as a share of the minibatch's tokens."""
    return (flags_BT & batch.loss_mask_BT).sum() / batch.totals.tokens


def token_covariance(batch: LossBatch) -> Tensor:
    """[B, T]: (A - mean A) (log pi - mean log pi), means over all loss tokens; no gradient.

    It is high for likely tokens with a positive advantage, and for unlikely ones with a negative
    one: an update towards them makes the distribution sharper. Meaningless outside the mask.
    """
    centred_BT, advantages_BT = (
        values_BT - masked_mean(values_BT, batch.loss_mask_BT)
        for values_BT in (batch.policy_logprobs_BT.detach(), batch.advantages_BT)
    )
    return advantages_BT * centred_BT


def pick_highest(scores_BT: Tensor, mask_BT: Tensor, count: int) -> Tensor:
    """[B, T] bool: the `count` tokens of the mask with the highest scores, or all if fewer.

    The count is exact: ties are broken.
    """
    scores_N = scores_BT[mask_BT]
    chosen_N = mask_BT.new_zeros(scores_N.shape)
    chosen_N[scores_N.topk(min(count, len(scores_N))).indices] = True
    return mask_BT.new_zeros(mask_BT.shape).masked_scatter(mask_BT, chosen_N)


def probability_shift(batch: LossBatch) -> Tensor:
    """Return [B, T] policy minus behaviour probability; no gradient, 0 outside the mask."""
    assert batch.behavior_logprobs_BT is not None
    shift_BT = batch.policy_logprobs_BT.detach().exp() - batch.behavior_logprobs_BT.exp()
    return kept(shift_BT, batch.loss_mask_BT)


def region_loss(
    batch: LossBatch, aggregation: Aggregation, *, outside_BT: Tensor, kl_coefficient: float
) -> PolicyLoss:
    """-r A on tokens inside the region, plus `kl_coefficient` (log r)^2 on all tokens.

    r is the ratio to the policy that sampled. Metrics: the share of tokens outside, and the
    contributions of tokens outside and inside to the mean mismatch KL.
    """
    assert batch.behavior_logprobs_BT is not None
    mask_BT = batch.loss_mask_BT
    log_ratio_BT = kept(batch.policy_logprobs_BT - batch.behavior_logprobs_BT, mask_BT)
    bounded_BT = log_ratio_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    # masked before exp: 0 times an infinity would be a NaN in the gradient
    surrogate_BT = -batch.advantages_BT * bounded_BT.masked_fill(outside_BT, 0.0).exp()
    loss_BT = surrogate_BT.masked_fill(outside_BT, 0.0) + kl_coefficient * log_ratio_BT**2
    mismatch_BT = token_kl(-bounded_BT.detach(), estimator="k3")
    inside_BT, outside_BT = mask_BT & ~outside_BT, mask_BT & outside_BT
    metrics = {
        "outside_share": token_share(outside_BT, batch),
        "outside_mismatch_kl": kept(mismatch_BT, outside_BT).sum() / batch.totals.tokens,
        "inside_mismatch_kl": kept(mismatch_BT, inside_BT).sum() / batch.totals.tokens,
    }
    return PolicyLoss(aggregate(aggregation, loss_BT, mask_BT, batch.totals), metrics)

"""Regularisation of the policy: KL(policy || reference) from sampled tokens, and the entropy bonus.

KL estimators after Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx.html),
with d = policy minus reference log-prob of a token that the policy sampled:

    k1   d                  unbiased; in a loss its gradient has mean 0, so use it in the reward
    abs  |d|
    k2   d^2 / 2            biased; its gradient is that of the KL
    k3   exp(-d) + d - 1    unbiased, never negative

Axes: B trajectories, T token columns, V vocabulary. All in nats. Log-probs and entropy are computed
in the type of the logits: convert bfloat16 to float32 first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import AlgorithmRule, LossBatch, PolicyLoss
from espalier.algorithms.masking import kept

if TYPE_CHECKING:
    from torch import Tensor


KlEstimator = Literal["k1", "abs", "k2", "k3"]
KlConvention = Literal["verl", "trl"]
"""verl clamps inside k3, and a clamped token loses its gradient; TRL and prime-rl do not clamp."""

VERL_LOG_RATIO_BOUND = 20.0
VERL_K3_BOUND = 10.0


def token_kl(
    log_ratio_BT: Tensor, *, estimator: KlEstimator, convention: KlConvention = "trl"
) -> Tensor:
    """Estimate for each token, in the shape of `log_ratio_BT` (policy less reference log-prob)."""
    match estimator:
        case "k1":
            return log_ratio_BT
        case "abs":
            return log_ratio_BT.abs()
        case "k2":
            return log_ratio_BT**2 / 2
        case "k3" if convention == "verl":
            bounded_BT = log_ratio_BT.clamp(-VERL_LOG_RATIO_BOUND, VERL_LOG_RATIO_BOUND)
            return _k3(bounded_BT).clamp(-VERL_K3_BOUND, VERL_K3_BOUND)
        case "k3":
            return _k3(log_ratio_BT)


def mismatch_kl(policy_logprobs_BT: Tensor, behavior_logprobs_BT: Tensor) -> Tensor:
    """KL(sampler || policy) of each token by k3: a health signal, not a loss (prime-rl)."""
    return _k3(behavior_logprobs_BT - policy_logprobs_BT)


def _k3(log_ratio_BT: Tensor) -> Tensor:
    return (-log_ratio_BT).exp() + log_ratio_BT - 1


class AdaptiveKl(AlgorithmRule):
    """A coefficient that steers the KL to a target (Ziegler et al. 2019, arXiv:1909.08593, 2.2).

    Stateless: the trainer keeps the coefficient, and saves it in its checkpoint.
    """

    target: float = Field(default=6.0, gt=0)
    """Target of the KL, in nats per trajectory or per token, whichever is observed."""
    horizon: float = Field(default=10_000, gt=0)
    """Number of trajectories in which an error of 20% or more moves the coefficient by about a
    fifth."""

    def next_coefficient(self, coefficient: float, observed: float, trajectories: int) -> float:
        """Return the coefficient after `trajectories` more, whose KL was `observed`."""
        error = min(max(observed / self.target - 1, -0.2), 0.2)
        # a step of more than the horizon would turn the penalty into a reward
        return coefficient * (1 + error * min(1.0, trajectories / self.horizon))


class KlPenalty(AlgorithmRule):
    """KL penalty on each token, in the loss or in the reward."""

    place: Literal["loss", "reward"] = "loss"
    """Whether the penalty is a term of the loss, or subtracted from each token's reward."""
    coefficient: float = Field(default=1e-3, gt=0)
    """The coefficient; if it is adaptive, its first value."""
    estimator: KlEstimator = "k3"
    """k1, abs, k2 or k3 of Schulman's note: how the KL is estimated from sampled tokens."""
    convention: KlConvention = "verl"
    """"verl" clamps inside k3, and a clamped token loses its gradient; "trl" does not clamp: one
    token that the reference likes and the policy does not, -61 beside -1, then is the update."""
    importance_corrected: bool = False
    """Multiplies a token's estimate by its policy / proximal ratio, gradient included, so that it
    is unbiased after the first inner step (DeepSeek-V3.2, arXiv:2512.02556, sec. 3.1; TRL)."""
    adaptive: AdaptiveKl | None = None

    def loss(self, batch: LossBatch, aggregation: Aggregation, *, coefficient: float) -> PolicyLoss:
        """Return the minibatch share of `coefficient` * KL; `kl` is that of the token mean."""
        assert batch.reference_logprobs_BT is not None
        mask_BT = batch.loss_mask_BT
        log_ratio_BT = kept(batch.policy_logprobs_BT - batch.reference_logprobs_BT, mask_BT)
        kl_BT = token_kl(log_ratio_BT, estimator=self.estimator, convention=self.convention)
        if self.importance_corrected:
            moved_BT = kept(batch.policy_logprobs_BT - batch.proximal_logprobs_BT, mask_BT)
            # beyond this bound exp would be infinite, and the gradient NaN
            bound = VERL_LOG_RATIO_BOUND
            kl_BT = kl_BT * moved_BT.clamp(-bound, bound).exp()
        share = kept(kl_BT.detach(), mask_BT).sum() / batch.totals.tokens
        loss = coefficient * aggregate(aggregation, kl_BT, mask_BT, batch.totals)
        return PolicyLoss(loss, {"kl": share})

    def penalized(
        self, rewards_BT: Tensor, log_ratio_BT: Tensor, mask_BT: Tensor, *, coefficient: float
    ) -> Tensor:
        """Return [B, T] rewards, minus `coefficient` * KL on each token of the mask.

        Args:
            rewards_BT: [B, T] reward units.
            log_ratio_BT: [B, T] sampling (or proximal) minus reference log-prob.
            mask_BT: [B, T] bool.
            coefficient: reward units per nat.
        """
        masked_BT = kept(log_ratio_BT, mask_BT)
        kl_BT = token_kl(masked_BT, estimator=self.estimator, convention=self.convention)
        return rewards_BT - coefficient * kl_BT


def token_logprobs(logits_BTV: Tensor, token_ids_BT: Tensor, *, temperature: float) -> Tensor:
    """[B, T] log-prob of each token under the softmax of logits / temperature.

    `temperature` must be the sampler's, as otherwise the ratio to the sampler is wrong.
    """
    chosen_BT = logits_BTV.gather(-1, token_ids_BT.unsqueeze(-1)).squeeze(-1)
    return chosen_BT / temperature - (logits_BTV / temperature).logsumexp(dim=-1)


def token_entropy(logits_BTV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """[B, T] entropy of each distribution; tokens with logit -inf are allowed and add nothing."""
    logprobs_BTV = (logits_BTV / temperature).log_softmax(dim=-1)
    surprise_BTV = logprobs_BTV.masked_fill(logprobs_BTV.isneginf(), 0.0)
    return -(logprobs_BTV.exp() * surprise_BTV).sum(dim=-1)


def entropy_bonus(batch: LossBatch, aggregation: Aggregation, *, coefficient: float) -> PolicyLoss:
    """The minibatch share of -`coefficient` * entropy (A3C, Mnih et al. 2016, arXiv:1602.01783)."""
    assert batch.entropy_BT is not None
    mask_BT = batch.loss_mask_BT
    return PolicyLoss(
        -coefficient * aggregate(aggregation, batch.entropy_BT, mask_BT, batch.totals)
    )

"""Inputs and results of off-policy rules, and figures on how far sampler and trainer differ.

The sampler never equals the trained policy exactly: its kernels round differently, its weights may
be older. Axes: B trajectories, T token columns. Log-probs in nats, without gradient.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from espalier.algorithms.batch import AlgorithmRule
from espalier.algorithms.masking import kept, masked_mean, row_means
from espalier.algorithms.regularizers import token_kl

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionBatch:
    """Trajectories whose tokens are to be weighted or dropped."""

    trainer_logprobs_BT: Tensor
    """Log-probs recomputed before the update (proximal), or those of the policy itself (verl's
    bypass)."""
    behavior_logprobs_BT: Tensor
    """Log-probs of the policy that sampled; NaN where unknown, which counts as no difference."""
    action_mask_BT: Tensor
    """Bool."""
    advantages_BT: Tensor | None = None

    @property
    def known_BT(self) -> Tensor:
        """[B, T] bool: tokens of the mask that have a behaviour log-prob."""
        return self.action_mask_BT & ~self.behavior_logprobs_BT.isnan()

    @property
    def log_ratio_BT(self) -> Tensor:
        """Return [B, T] trainer minus behaviour log-prob; 0 where masked and where unknown."""
        log_ratio_BT = self.trainer_logprobs_BT - self.behavior_logprobs_BT
        return kept(log_ratio_BT.detach(), self.known_BT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The result of a rule: weights and mask of a batch's tokens."""

    weights_BT: Tensor | None = None
    """Factors of the tokens' losses; a weight of 0 still counts in every mean. None means 1."""
    mask_BT: Tensor
    """Bool; a token dropped from it does not count in the means any more."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Scalars over the whole batch."""


class CorrectionRule(AlgorithmRule):
    """Base of the off-policy corrections."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """Optional fields of `CorrectionBatch` that it reads."""
    gives_weights: ClassVar[bool] = True
    """Whether it returns weights, which the loss must accept; a rule without them only masks."""

    @abstractmethod
    def correct(self, batch: CorrectionBatch) -> Correction:
        """Weights and mask for the batch's tokens."""


def correct(rules: Sequence[CorrectionRule], batch: CorrectionBatch) -> Correction:
    """Apply all rules to the same batch: weights multiply, and dropped tokens add up.

    Each sees the unchanged batch, so their order does not matter. Weights are normalised over all
    tokens, including those that a rejection drops, as in verl.
    """
    weights_BT, mask_BT = None, batch.action_mask_BT
    metrics: dict[str, Tensor] = {}
    for rule in rules:
        found = rule.correct(batch)
        mask_BT = mask_BT & found.mask_BT
        if found.weights_BT is not None:
            weights_BT = found.weights_BT if weights_BT is None else weights_BT * found.weights_BT
        metrics |= found.metrics
    return Correction(weights_BT=weights_BT, mask_BT=mask_BT, metrics=metrics)


LOG_RATIO_BOUND = 20.0
"""Bound on the log-ratio: verl's constant."""


def mismatch_metrics(batch: CorrectionBatch) -> dict[str, Tensor]:
    """Return scalars over the whole batch; nats unless the name says otherwise.

    Tokens whose behaviour log-prob is not known are left out. Perplexities are means over rows of
    exp(mean token surprise); a row without tokens enters as 1. `log_perplexity_gap` is trainer
    minus sampler. `chi2_*` are E[ratio^2] - 1 of tokens, and of the products over rows; the
    variance of importance weights grows with them.
    """
    mask_BT = batch.known_BT
    log_ratio_BT = batch.log_ratio_BT
    token_log_ratio_BT = log_ratio_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    trainer_B = -row_means(batch.trainer_logprobs_BT.detach(), mask_BT)
    gap_B = -row_means(log_ratio_BT, mask_BT)
    behavior_B = trainer_B - gap_B
    row_log_ratio_B = log_ratio_BT.sum(dim=1).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    absolute_BT = log_ratio_BT.abs()
    return {
        "logprob_gap_mean": masked_mean(absolute_BT, mask_BT),
        "logprob_gap_max": kept(absolute_BT, mask_BT).max(),
        "mismatch_kl_k1": masked_mean(-log_ratio_BT, mask_BT),
        "mismatch_kl": masked_mean(token_kl(-log_ratio_BT, estimator="k3"), mask_BT),
        "trainer_perplexity": trainer_B.exp().mean(),
        "behavior_perplexity": behavior_B.exp().mean(),
        "log_perplexity_gap": gap_B.mean(),
        "log_perplexity_gap_abs": gap_B.abs().mean(),
        "log_perplexity_gap_max": gap_B.max(),
        "log_perplexity_gap_min": gap_B.min(),
        "perplexity_ratio": gap_B.exp().mean(),
        "chi2_token": masked_mean((2 * token_log_ratio_BT).exp(), mask_BT) - 1,
        "chi2_row": (2 * row_log_ratio_B).exp().mean() - 1,
    }

"""How far apart sampler and trainer are: figures for the log, after verl's off-policy metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from espalier.algorithms.kl import token_kl
from espalier.algorithms.masking import kept, masked_mean, row_means
from espalier.algorithms.off_policy.correction import CorrectionBatch

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""verl's constant."""


def mismatch_metrics(batch: CorrectionBatch) -> dict[str, Tensor]:
    """Scalars over the whole batch; nats unless the name says otherwise.

    Tokens whose behaviour log-prob is not known are left out. Perplexities are means over rows of
    exp(mean token surprise); a row without tokens enters as 1. `log_perplexity_gap` is trainer less
    sampler. `chi2_*` are E[ratio^2] - 1 of tokens, and of the products over rows: what the variance
    of importance weights grows with.
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

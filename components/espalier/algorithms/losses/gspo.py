"""Group sequence policy optimisation (Zheng et al. 2025, arXiv:2507.18071)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.losses.rule import PolicyLossRule, log_ratio, token_share, weighted
from espalier.algorithms.masking import row_means


class Gspo(PolicyLossRule):
    """PPO's clip on one ratio per sequence: exp(mean over its tokens of the log-ratio).

    The gradient goes through each token's own log-prob (GSPO-token, sec. 4.3), as in verl. It is
    that of GSPO, and of TRL, if advantages and weights are one number per sequence; else each acts
    on its own token. With the aggregation `row_mean_token_sum` this is LUSPO (arXiv:2602.05261).
    """

    clips_sequences: ClassVar[bool] = True
    name: Literal["gspo"] = "gspo"
    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """The ratio of a sequence is clipped below 1 - clip_low. Sec. 5.1 of the paper: a mean
    log-ratio varies far less than a token's."""
    clip_high: float = Field(default=4e-4, gt=0)
    """The ratio of a sequence is clipped above 1 + clip_high."""
    log_ratio_ceiling: float | None = Field(default=10.0, gt=0)
    """Upper bound of the log-ratio, as in verl; None as in TRL."""

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """Return the loss; metrics: shares of clipped tokens and of clipped sequences."""
        mask_BT, advantages_BT = batch.loss_mask_BT, batch.advantages_BT
        own_BT = log_ratio(batch)
        sequence_B = row_means(own_BT, mask_BT).detach()
        log_ratio_BT = sequence_B[:, None] + own_BT - own_BT.detach()
        if self.log_ratio_ceiling is not None:
            log_ratio_BT = log_ratio_BT.clamp(max=self.log_ratio_ceiling)
        ratio_BT = log_ratio_BT.exp()
        plain_BT = -advantages_BT * ratio_BT
        bounded_BT = ratio_BT.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss_BT = plain_BT.maximum(-advantages_BT * bounded_BT)
        clipped_BT = (loss_BT > plain_BT) & mask_BT
        metrics = {
            "clipped_share": token_share(clipped_BT, batch),
            "clipped_sequence_share": clipped_BT.any(dim=1).sum() / batch.totals.sequences,
        }
        loss = aggregate(aggregation, weighted(loss_BT, batch), mask_BT, batch.totals)
        return PolicyLoss(loss, metrics)

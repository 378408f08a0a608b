"""PPO's clip on the whole sequence as one action (RLOO, Ahmadian et al. 2024, arXiv:2402.14740)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.losses.rule import LOG_RATIO_BOUND, PolicyLossRule, log_ratio
from espalier.algorithms.masking import row_means


class SequencePpoClip(PolicyLossRule):
    """One ratio per sequence, exp(sum of its tokens' log-ratios), as in TRL's RLOO trainer.

    Not normalised by length, so long sequences leave the clip range soon. Advantages and weights
    enter by their mean over the sequence.
    """

    clips_sequences: ClassVar[bool] = True
    fixed_aggregation: ClassVar[Aggregation | None] = "row_mean_token_mean"
    name: Literal["sequence_ppo_clip"] = "sequence_ppo_clip"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The ratio is clipped above 1 + clip_high."""

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """Return the loss; metric: the share of sequences whose ratio is clipped."""
        mask_BT = batch.loss_mask_BT
        ratio_B = log_ratio(batch).sum(dim=1).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
        advantages_B = row_means(batch.advantages_BT, mask_BT)
        plain_B = -advantages_B * ratio_B
        bounded_B = ratio_B.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss_B = plain_B.maximum(-advantages_B * bounded_B)
        clipped = (loss_B > plain_B).sum() / batch.totals.sequences
        if batch.importance_weights_BT is not None:
            loss_B = loss_B * row_means(batch.importance_weights_BT, mask_BT)
        loss = aggregate(aggregation, loss_B[:, None].expand(mask_BT.shape), mask_BT, batch.totals)
        return PolicyLoss(loss, {"clipped_sequence_share": clipped})

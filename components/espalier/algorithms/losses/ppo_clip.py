"""The clipped surrogate (Schulman et al. 2017, arXiv:1707.06347, eq. 7) with two bounds.

DAPO's wider upper bound (Yu et al. 2025, arXiv:2503.14476, eq. 8) leaves rare tokens room to grow;
the dual clip (Ye et al. 2019, arXiv:1912.09729, eq. 5) bounds the loss of a negative advantage at a
large ratio.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.losses.rule import (
    LOG_RATIO_BOUND,
    PolicyLossRule,
    log_ratio,
    token_share,
    weighted,
)


class PpoClip(PolicyLossRule):
    """max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A) for each token, r = policy / proximal."""

    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = Field(default=0.28, gt=0)
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound on r where the advantage is negative; None switches it off. verl's default is 3. TRL's
    `delta` is the same bound: it holds for both signs, but where A > 0 clip_high is lower."""
    log_ratio_bound: float | None = Field(default=LOG_RATIO_BOUND, gt=0)
    """Bound on the log-ratio, as in verl; None as in TRL."""

    @model_validator(mode="after")
    def _dual_clip_is_beyond_the_clip(self) -> Self:
        if self.dual_clip is not None and self.dual_clip < 1 + self.clip_high:
            raise ValueError(
                f"dual_clip={self.dual_clip} lies inside the clip, which ends at "
                f"{1 + self.clip_high}; raise it, or leave it out"
            )
        return self

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """Return the loss; metrics: shares of tokens clipped by any, the upper, the dual bound."""
        advantages_BT = batch.advantages_BT
        ratio_BT = log_ratio(batch, bound=self.log_ratio_bound).exp()
        plain_BT = -advantages_BT * ratio_BT
        bounded_BT = ratio_BT.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss_BT = plain_BT.maximum(-advantages_BT * bounded_BT)
        clipped_BT = loss_BT > plain_BT
        metrics = {
            "clipped_share": token_share(clipped_BT, batch),
            "clipped_high_share": token_share(clipped_BT & (advantages_BT > 0), batch),
        }
        if self.dual_clip is not None:
            ceiling_BT = -advantages_BT * self.dual_clip
            held_BT = (loss_BT > ceiling_BT) & (advantages_BT < 0)
            loss_BT = ceiling_BT.where(held_BT, loss_BT)
            metrics["dual_clipped_share"] = token_share(held_BT, batch)
        loss_BT = weighted(loss_BT, batch)
        loss = aggregate(aggregation, loss_BT, batch.loss_mask_BT, batch.totals)
        return PolicyLoss(loss, metrics)

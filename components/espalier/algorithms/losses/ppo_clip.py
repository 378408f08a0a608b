"""The clipped surrogate (Schulman et al. 2017, arXiv:1707.06347, eq. 7) with two bounds.

DAPO's wider upper bound (Yu et al. 2025, arXiv:2503.14476, eq. 8) leaves room for tokens that are
still rare; the dual clip (Ye et al. 2019, arXiv:1912.09729, eq. 5) bounds what a negative advantage
can do once the ratio has run away.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.rule import Rule

LOG_RATIO_BOUND = 20.0
"""exp(20) is far outside every clip, and keeps float32 finite (verl's constant)."""


class PpoClip(Rule):
    """max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A) for each token, r = policy / proximal."""

    needs: ClassVar[frozenset[str]] = frozenset()
    whole_minibatch: ClassVar[bool] = False
    """Whether the rule compares tokens of the whole minibatch, so that it cannot be split."""
    fixed_aggregation: ClassVar[Aggregation | None] = None
    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound on r where the advantage is negative; verl's default is 3. None switches it off."""

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """The minibatch share of the loss; `clipped_share` counts where a clip binds."""
        mask_BT, advantages_BT = batch.loss_mask_BT, batch.advantages_BT
        log_ratio_BT = batch.policy_logprobs_BT - batch.proximal_logprobs_BT
        importance_ratio_BT = log_ratio_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
        plain_BT = -advantages_BT * importance_ratio_BT
        bounded_BT = importance_ratio_BT.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss_BT = plain_BT.maximum(-advantages_BT * bounded_BT)
        clipped_BT = loss_BT > plain_BT
        if self.dual_clip is not None:
            ceiling_BT = -advantages_BT * self.dual_clip
            held_BT = loss_BT.minimum(ceiling_BT)
            loss_BT = held_BT.where(advantages_BT < 0, loss_BT)
        if batch.importance_weights_BT is not None:
            loss_BT = loss_BT * batch.importance_weights_BT
        clipped = (clipped_BT & mask_BT).sum() / batch.totals.tokens
        loss = aggregate(aggregation, loss_BT, mask_BT, batch.totals)
        return PolicyLoss(loss, {"clipped_share": clipped})

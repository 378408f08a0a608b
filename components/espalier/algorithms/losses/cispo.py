"""Clipped importance sampling (CISPO; MiniMax-M1 2025, arXiv:2506.13585)."""

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
from espalier.algorithms.masking import kept


class Cispo(PolicyLossRule):
    """-sg(clamp(r)) A log pi: the ratio is bounded, and no token loses its gradient."""

    name: Literal["cispo"] = "cispo"
    convention: Literal["verl", "trl"] = "trl"
    """Meaning of `clip_high`: r <= 1 + clip_high in verl, r <= clip_high in TRL."""
    clip_high: float = Field(default=5.0, gt=0)
    """5 is TRL's and ScaleRL's (arXiv:2510.13786), in TRL's convention."""
    clip_low: float | None = Field(default=None, gt=0)
    """Only for verl: r >= 1 - clip_low. None has no lower bound, as in TRL and in the paper's
    runs."""
    log_ratio_bound: float | None = Field(default=LOG_RATIO_BOUND, gt=0)
    """Bound on the log-ratio, as in verl; None as in TRL."""

    @model_validator(mode="after")
    def _trl_has_no_lower_bound(self) -> Self:
        if self.convention == "trl" and self.clip_low is not None:
            raise ValueError(
                f'cispo: clip_low={self.clip_low} has no meaning with convention = "trl", which '
                'bounds the ratio from above alone; leave it out, or choose convention = "verl"'
            )
        return self

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """`clipped_share` counts tokens as the convention's upstream does.

        TRL's `cispo_clip_ratio`: the ratio is above the bound and the advantage is positive. verl's
        `pg_clipfrac`: the ratio was changed, whatever the advantage.
        """
        mask_BT = batch.loss_mask_BT
        ratio_BT = log_ratio(batch, bound=self.log_ratio_bound).exp().detach()
        ceiling = self.clip_high + (1 if self.convention == "verl" else 0)
        floor = 0.0 if self.clip_low is None else 1 - self.clip_low
        bounded_BT = ratio_BT.clamp(floor, ceiling)
        logprobs_BT = kept(batch.policy_logprobs_BT, mask_BT)
        loss_BT = weighted(-bounded_BT * batch.advantages_BT * logprobs_BT, batch)
        loss = aggregate(aggregation, loss_BT, mask_BT, batch.totals)
        clipped_BT = bounded_BT != ratio_BT
        if self.convention == "trl":
            clipped_BT = clipped_BT & (batch.advantages_BT > 0)
        return PolicyLoss(loss, {"clipped_share": token_share(clipped_BT, batch)})

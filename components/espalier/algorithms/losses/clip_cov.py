"""Clip-Cov (Cui et al. 2025, arXiv:2505.22617)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.losses.rule import (
    PolicyLossRule,
    log_ratio,
    pick_highest,
    token_covariance,
    token_share,
    weighted,
)


class ClipCov(PolicyLossRule):
    """PPO's clip; a few tokens of high covariance, chosen at random, get no gradient.

    They are those with the lowest `draws_BT` among the tokens whose covariance is inside the band
    and whose ratio is not already clipped.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"draws_BT"})
    whole_minibatch: ClassVar[bool] = True
    name: Literal["clip_cov"] = "clip_cov"
    share: float = Field(default=2e-4, gt=0, le=1)
    """Share of the minibatch's tokens without gradient, at least one token; the paper's value."""
    covariance_low: float = 1.0
    """Lower end of the band, excluded; 1 and 5 are the paper's ends, far above the mean
    covariance."""
    covariance_high: float = 5.0
    """Upper end of the band, excluded."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The ratio is clipped above 1 + clip_high."""

    @model_validator(mode="after")
    def _band_is_an_interval(self) -> Self:
        if not self.covariance_low < self.covariance_high:
            raise ValueError(
                f"clip_cov: covariance_low={self.covariance_low} is not below "
                f"covariance_high={self.covariance_high}"
            )
        return self

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """Return the loss; metrics: shares of tokens that were dropped, and that were clipped."""
        assert batch.draws_BT is not None
        mask_BT, advantages_BT = batch.loss_mask_BT, batch.advantages_BT
        ratio_BT = log_ratio(batch).exp()
        plain_BT = -advantages_BT * ratio_BT
        bounded_BT = ratio_BT.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss_BT = plain_BT.maximum(-advantages_BT * bounded_BT)
        clipped_BT = loss_BT > plain_BT
        covariance_BT = token_covariance(batch)
        in_band_BT = (covariance_BT > self.covariance_low) & (covariance_BT < self.covariance_high)
        count = max(1, int(self.share * int(mask_BT.sum())))
        dropped_BT = pick_highest(-batch.draws_BT, in_band_BT & mask_BT & ~clipped_BT, count)
        loss_BT = weighted(loss_BT.masked_fill(dropped_BT, 0.0), batch)
        loss = aggregate(aggregation, loss_BT, mask_BT, batch.totals)
        shares = {"dropped_share": dropped_BT, "clipped_share": clipped_BT}
        return PolicyLoss(loss, {key: token_share(flags, batch) for key, flags in shares.items()})

"""Truncated importance sampling between sampler and trainer.

Token level: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
training". Sequence level: Liu et al. 2025, "When speed kills stability". verl and TRL have both.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from espalier.algorithms.masking import kept, masked_mean, row_means
from espalier.algorithms.off_policy.correction import (
    Correction,
    CorrectionBatch,
    CorrectionRule,
)

if TYPE_CHECKING:
    from torch import Tensor

LEAST_MEAN_WEIGHT = 1e-8
"""verl's constant: a batch with a smaller mean weight is not normalised."""


class ImportanceWeights(CorrectionRule):
    """The ratio trainer / sampler of each token, or the product over a sequence, within bounds.

    The product is not normalised by length. Ratios outside the bounds may become weights of 0
    (`outside = "zero"`): unlike with `rejection`, such tokens still count in the means.
    """

    name: Literal["importance_weights"] = "importance_weights"
    level: Literal["token", "sequence"] = "token"
    """One ratio per token, or the product over a sequence."""
    upper: float = Field(default=2.0, gt=0)
    """Upper bound of the ratio: 2 is verl's default; TRL's clip_max is 3."""
    lower: float | None = Field(default=None, gt=0)
    """Lower bound of the ratio: TRL's clip_min; verl has none."""
    outside: Literal["truncate", "zero"] = "truncate"
    """Whether ratios outside the bounds are clipped or become 0: TRL's `*_truncate` and
    `*_mask`."""
    normalize: bool = False
    """Divide by the batch's mean weight, over tokens or over rows, after truncation, as in verl;
    weights with a mean of 1e-8 or less stay unchanged."""
    log_ratio_bound: float | None = Field(default=20.0, gt=0)
    """Bound on the log-ratio, as in verl; None as in TRL."""

    @model_validator(mode="after")
    def _bounds_are_an_interval(self) -> Self:
        if self.lower is not None and self.lower >= self.upper:
            raise ValueError(
                f"importance_weights: lower={self.lower} is not below upper={self.upper}"
            )
        return self

    def correct(self, batch: CorrectionBatch) -> Correction:
        """Weights, 0 outside the mask, and figures about them.

        Means are over tokens: of the ratios before truncation, and of the weights before
        normalisation. `importance_above_share` is verl's `rollout_is_ratio_fraction_high`: the
        share of ratios above `upper`, of tokens at token level and of all rows (one without tokens
        has a ratio of 1) at sequence level. `importance_effective_share` is Kish's effective sample
        size over the token count.
        """
        mask_BT = batch.action_mask_BT
        log_ratio_BT = batch.log_ratio_BT
        if self.level == "sequence":
            log_ratio_BT = log_ratio_BT.sum(dim=1, keepdim=True).expand(mask_BT.shape)
        if self.log_ratio_bound is not None:
            log_ratio_BT = log_ratio_BT.clamp(-self.log_ratio_bound, self.log_ratio_bound)
        ratio_BT = log_ratio_BT.exp()
        weights_BT = kept(self._bounded(ratio_BT), mask_BT)
        metrics = self._metrics(ratio_BT, weights_BT, mask_BT)
        if self.normalize:
            mean_weight = self._mean_weight(weights_BT, mask_BT)
            # with outside = "zero" all weights may be 0, and 0 / 0 would make the policy NaN
            weights_BT = weights_BT / mean_weight.where(mean_weight > LEAST_MEAN_WEIGHT, 1.0)
        return Correction(weights_BT=weights_BT, mask_BT=mask_BT, metrics=metrics)

    def _bounded(self, ratio_BT: Tensor) -> Tensor:
        held_BT = ratio_BT.clamp(self.lower, self.upper)
        return (
            held_BT
            if self.outside == "truncate"
            else ratio_BT.masked_fill(ratio_BT != held_BT, 0.0)
        )

    def _mean_weight(self, weights_BT: Tensor, mask_BT: Tensor) -> Tensor:
        if self.level == "token":
            return masked_mean(weights_BT, mask_BT)
        # every row counts the same, long or short
        return row_means(weights_BT, mask_BT).sum() / mask_BT.any(dim=1).sum().clamp(min=1)

    def _metrics(self, ratio_BT: Tensor, weights_BT: Tensor, mask_BT: Tensor) -> dict[str, Tensor]:
        mean_weight = masked_mean(weights_BT, mask_BT)
        mean_square = masked_mean(weights_BT**2, mask_BT)
        is_above_BT = ratio_BT > self.upper
        if self.level == "token":
            above_share = masked_mean(is_above_BT, mask_BT)
        else:  # every column of a row holds the row's ratio
            above_share = is_above_BT[:, 0].to(ratio_BT.dtype).mean()
        return {
            "importance_ratio_mean": masked_mean(ratio_BT, mask_BT),
            "importance_ratio_min": ratio_BT.masked_fill(~mask_BT, math.inf).min(),
            "importance_ratio_max": kept(ratio_BT, mask_BT).max(),
            "importance_above_share": above_share,
            "importance_weight_mean": mean_weight,
            # 0, and not 0 / 0, where all weights are 0
            "importance_effective_share": mean_weight**2 / mean_square.where(mean_square > 0, 1.0),
        }

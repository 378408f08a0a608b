"""Rejection of tokens or trajectories on which the sampler and the trainer disagree (verl)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from espalier.algorithms.masking import kept, row_means
from espalier.algorithms.off_policy.correction import (
    LOG_RATIO_BOUND,
    Correction,
    CorrectionBatch,
    CorrectionRule,
)
from espalier.algorithms.regularizers import token_kl

if TYPE_CHECKING:
    from torch import Tensor


class Rejection(CorrectionRule):
    """Drops tokens or whole trajectories outside the bounds from the loss mask.

    Decides by an estimate of KL(sampler || trainer) of each token, or by its sum, mean or maximum
    over the trajectory, which is then kept or dropped as a whole. verl's names combine `level` and
    `estimator`: `token_k1`, `seq_mean_k3`, ...
    """

    gives_weights: ClassVar[bool] = False
    name: Literal["rejection"] = "rejection"
    level: Literal["token", "seq_sum", "seq_mean", "seq_max"] = "token"
    """The unit that is tested: each token, or the sum, mean or maximum over a trajectory."""
    estimator: Literal["k1", "k2", "k3"] = "k1"
    """Estimator of KL(sampler || trainer) from the sampled tokens."""
    upper: float = Field(gt=0)
    """Upper bound. For k1, of the ratio sampler / trainer, the inverse of an importance weight; for
    k2 and k3, in nats."""
    lower: float | None = Field(default=None, gt=0)
    """Lower bound, only for k1, of the same ratio; None is 1 / upper."""

    @model_validator(mode="after")
    def _bounds_fit_the_estimator(self) -> Self:
        if self.estimator != "k1" and self.lower is not None:
            raise ValueError(
                f"rejection: lower={self.lower} bounds a ratio, but {self.estimator} is a distance "
                'that starts at 0; leave it out, or choose estimator = "k1"'
            )
        if self.estimator == "k1" and not (self.lower or 1 / self.upper) < self.upper:
            raise ValueError(
                f"rejection: nothing lies between lower={self.lower or 1 / self.upper} and "
                f"upper={self.upper}, which bound the ratio sampler / trainer"
            )
        return self

    def correct(self, batch: CorrectionBatch) -> Correction:
        """Return the mask; metrics: shares of dropped tokens, and of sequences that lose some."""
        mask_BT = batch.action_mask_BT
        distance_BT = self._distance(batch)
        if self.estimator == "k1":
            lower = -math.log(self.upper) if self.lower is None else math.log(self.lower)
            inside_BT = (distance_BT >= lower) & (distance_BT <= math.log(self.upper))
        else:
            inside_BT = distance_BT <= self.upper
        lost_BT = mask_BT & ~inside_BT
        kind = f"{self.level}_{self.estimator}"
        metrics = {
            f"rejected_share_{kind}": lost_BT.sum() / mask_BT.sum(),
            f"rejected_sequence_share_{kind}": lost_BT.any(dim=1).sum() / mask_BT.any(dim=1).sum(),
        }
        return Correction(mask_BT=mask_BT & inside_BT, metrics=metrics)

    def _distance(self, batch: CorrectionBatch) -> Tensor:
        """[B, T], or [B, 1] at sequence levels."""
        mask_BT = batch.action_mask_BT
        log_ratio_BT = batch.log_ratio_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        distance_BT = kept(token_kl(-log_ratio_BT, estimator=self.estimator), mask_BT)
        match self.level:
            case "token":
                return distance_BT
            case "seq_sum":
                return distance_BT.sum(dim=1, keepdim=True)
            case "seq_mean":
                return row_means(distance_BT, mask_BT)[:, None]
            case "seq_max":
                return distance_BT.masked_fill(~mask_BT, -math.inf).amax(dim=1, keepdim=True)

"""Soft adaptive policy optimisation (Gao et al. 2025, arXiv:2511.20347)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.losses.rule import LOG_RATIO_BOUND, PolicyLossRule, log_ratio, weighted


class Sapo(PolicyLossRule):
    """-A (4 / tau) sigmoid(tau (r - 1)): the gradient decays smoothly with |r - 1|, without a clip.

    The slope at r = 1 is 1 for every temperature; a higher one decays faster.
    """

    name: Literal["sapo"] = "sapo"
    temperature_positive: float = Field(default=1.0, gt=0)
    """Temperature for tokens with a positive advantage; with a higher one the gradient decays
    faster."""
    temperature_negative: float = Field(default=1.05, gt=0)
    """Temperature for the other tokens; higher, because lowering one token's probability raises
    many that were never sampled."""
    log_ratio_bound: float | None = Field(default=LOG_RATIO_BOUND, gt=0)
    """Bound on the log-ratio, as in verl; None as in TRL."""

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """Return the loss, without metrics, as nothing is clipped."""
        advantages_BT = batch.advantages_BT
        ratio_BT = log_ratio(batch, bound=self.log_ratio_bound).exp()
        negative_BT = advantages_BT.new_full(advantages_BT.shape, self.temperature_negative)
        temperature_BT = negative_BT.masked_fill(advantages_BT > 0, self.temperature_positive)
        gate_BT = (temperature_BT * (ratio_BT - 1)).sigmoid() * 4 / temperature_BT
        loss_BT = weighted(-advantages_BT * gate_BT, batch)
        return PolicyLoss(aggregate(aggregation, loss_BT, batch.loss_mask_BT, batch.totals))

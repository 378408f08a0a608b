"""INTELLECT policy optimisation, prime-rl's `ipo` loss (no relation to the preference loss)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.aggregation import Aggregation
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.losses.rule import PolicyLossRule, probability_shift, region_loss


class Ipo(PolicyLossRule):
    """No gradient for a token whose probability moved too far, whatever the direction or advantage.

    Such a token is too far off-policy to learn even from a step back. Ratio and region refer to the
    policy that sampled, as in `dppo`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"behavior_logprobs_BT"})
    takes_weights: ClassVar[bool] = False
    name: Literal["ipo"] = "ipo"
    threshold: float = Field(default=0.1, gt=0, le=1)
    """How far a probability may have moved, 0-1."""
    kl_coefficient: float = Field(default=1e-3, ge=0)
    """Weight of the squared log-ratio to the sampler, on every token."""

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """Return `region_loss` with the tokens outside the region."""
        outside_BT = probability_shift(batch).abs() > self.threshold
        return region_loss(
            batch, aggregation, outside_BT=outside_BT, kl_coefficient=self.kl_coefficient
        )

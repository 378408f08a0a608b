"""Divergence PPO by the binary total variation (Qi et al. 2026, arXiv:2602.04879)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.aggregation import Aggregation
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.losses.rule import PolicyLossRule, probability_shift, region_loss


class Dppo(PolicyLossRule):
    """No gradient for a token if it would move its probability further out of the region.

    prime-rl's `default` loss. Ratio and region refer to the policy that sampled, so importance
    weights are not used with it.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"behavior_logprobs_BT"})
    takes_weights: ClassVar[bool] = False
    name: Literal["dppo"] = "dppo"
    fall: float = Field(default=0.2, gt=0, le=1)
    """How far a probability may have fallen, 0-1, where the advantage is not positive."""
    rise: float = Field(default=0.2, gt=0, le=1)
    """How far it may have risen where the advantage is positive."""
    kl_coefficient: float = Field(default=1e-3, ge=0)
    """Weight of the squared log-ratio to the sampler, on every token."""

    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """Return `region_loss` with the tokens outside the region."""
        shift_BT = probability_shift(batch)
        outside_BT = (shift_BT > self.rise).where(batch.advantages_BT > 0, shift_BT < -self.fall)
        return region_loss(
            batch, aggregation, outside_BT=outside_BT, kl_coefficient=self.kl_coefficient
        )

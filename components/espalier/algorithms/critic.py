"""Settings of a learned value of states, which some advantages are measured against."""

from __future__ import annotations

from pydantic import Field

from espalier.algorithms.losses import ValueLoss
from espalier.algorithms.rule import Rule


class CriticSettings(Rule):
    """A critic of the policy's size, trained beside it on the same trajectories."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Constant. Higher than the policy's, because the value head starts from nothing."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """The critic's gradients of a larger norm are scaled down to it."""
    warmup_steps: int = Field(default=0, ge=0)
    """First steps in which the critic alone is trained (VAPO, arXiv:2504.05118, sec. 4.1); the
    policy's learning-rate schedule begins after them."""
    loss: ValueLoss = ValueLoss()

"""The critic's settings, and its loss, clipped as in PPO implementations (verl, OpenAI)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import AlgorithmRule, PolicyLoss, Totals
from espalier.algorithms.masking import kept

if TYPE_CHECKING:
    from torch import Tensor


class ValueLoss(AlgorithmRule):
    """Half the squared error to the returns: the larger of the value's and the clipped value's."""

    clip: float | None = Field(default=0.2, gt=0)
    """How far a value may move within a step, reward units."""
    aggregation: Aggregation = "token_mean"
    """How the errors of tokens become one number."""

    def loss(
        self,
        values_BT: Tensor,
        returns_BT: Tensor,
        *,
        old_values_BT: Tensor,
        mask_BT: Tensor,
        totals: Totals,
    ) -> PolicyLoss:
        """The minibatch share; `value_clipped_share` counts tokens where the clip binds.

        Args:
            values_BT: [B, T] the critic's values now, with gradient.
            returns_BT: [B, T] what they are fitted to.
            old_values_BT: [B, T] its values when the step began.
            mask_BT: [B, T] bool.
            totals: sizes of the whole minibatch.
        """
        values_BT = kept(values_BT, mask_BT)
        error_BT = (values_BT - returns_BT) ** 2
        clipped_BT = mask_BT.new_zeros(mask_BT.shape)
        if self.clip is not None:
            low_BT, high_BT = old_values_BT - self.clip, old_values_BT + self.clip
            held_error_BT = (values_BT.clamp(low_BT, high_BT) - returns_BT) ** 2
            clipped_BT = (held_error_BT > error_BT) & mask_BT
            error_BT = error_BT.maximum(held_error_BT)
        loss = 0.5 * aggregate(self.aggregation, error_BT, mask_BT, totals)
        return PolicyLoss(loss, {"value_clipped_share": clipped_BT.sum() / totals.tokens})


class CriticSettings(AlgorithmRule):
    """A critic of the policy's size, trained on the same trajectories."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Constant rate; higher than the policy's, because the value head is untrained."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients of the critic with a larger norm are scaled down to it."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """First steps in which only the critic is trained (VAPO, arXiv:2504.05118, sec. 4.1); the
    policy's learning-rate schedule begins after them. None is a sixth of `training.steps`, at most
    VAPO's 50: without a warm-up an untrained critic spoils the warm start."""
    loss: ValueLoss = ValueLoss()

    def warmup_of(self, steps: int) -> int:
        """Return how many steps of a run of `steps` train only the critic."""
        return min(50, steps // 6) if self.warmup_steps is None else self.warmup_steps

"""The critic's loss, clipped as PPO's implementations do (verl, OpenAI baselines)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import PolicyLoss, Totals
from espalier.algorithms.masking import kept
from espalier.algorithms.rule import Rule

if TYPE_CHECKING:
    from torch import Tensor


class ValueLoss(Rule):
    """Half the squared error to the returns, the larger of that of the value and of its clip."""

    clip: float | None = Field(default=0.2, gt=0)
    """How far a value may move from what it was when the step began, reward units."""
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

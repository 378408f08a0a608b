"""Centred rewards with a penalty on tokens and turns (prime-rl, `LinearLengthPenaltyConfig`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from espalier.algorithms.advantages.rules import OutcomeRule
from espalier.algorithms.advantages.segments import centre, group_max, group_mean
from espalier.algorithms.batch import CreditBatch

if TYPE_CHECKING:
    from torch import Tensor


class GrpoLengthPenalty(OutcomeRule):
    """Reward - mean reward * (weighted lengths, as shares of the group's longest), then centred.

    The penalty grows with the mean reward, and is 0 for a task that is never solved. Equal rewards
    of unequal length therefore have advantages other than 0.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"turns_BT", "total_tokens_B"})
    name: Literal["grpo_length_penalty"] = "grpo_length_penalty"
    output_weight: float = Field(default=0.25, ge=0)
    """Penalty of the group's largest number of action tokens, as a share of its mean reward."""
    input_weight: float = Field(default=0.1, ge=0)
    """The same for prompt and observation tokens."""
    turns_weight: float = Field(default=0.1, ge=0)
    """The same for the number of turns."""

    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """Return [B, T], 0 outside the action mask; an outcome of NaN is missing.

        One number for every action token of a trajectory.
        """
        assert batch.turns_BT is not None
        assert batch.total_tokens_B is not None
        groups_B = batch.groups_B
        output_B = batch.action_mask_BT.sum(dim=1)
        penalty_B = outcomes_B.new_zeros(outcomes_B.shape)
        for weight, length_B in (
            (self.output_weight, output_B),
            (self.input_weight, batch.total_tokens_B - output_B),
            (self.turns_weight, batch.turns_BT.amax(dim=1) + 1),
        ):
            length_B = length_B.to(outcomes_B.dtype)
            penalty_B += weight * length_B / group_max(length_B, groups_B).clamp(min=1)
        shaped_B = outcomes_B - group_mean(outcomes_B, groups_B) * penalty_B
        return batch.spread(centre(shaped_B, groups_B, group_of_one="zero"))

"""Group-relative advantages (Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.advantages.groups import (
    group_mean,
    group_size,
    group_std,
    is_zero_variance,
)
from espalier.algorithms.batch import Credit, CreditBatch
from espalier.algorithms.rule import Rule


class Grpo(Rule):
    """Reward centred on its group and divided by the group's standard deviation plus `std_eps`.

    A group of equal rewards is exactly 0: its float mean may differ from the rewards in the last
    bit, and dividing by the epsilon would make credit of the rounding. A group of one keeps its
    reward (verl takes mean 0 and deviation 1 there).
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    name: Literal["grpo"] = "grpo"
    std_ddof: Literal[0, 1] = 1
    """1 as in verl and TRL; 0 is the population form."""
    std_eps: float = Field(default=1e-6, ge=0)
    """verl adds 1e-6, TRL 1e-4."""

    def credit(self, batch: CreditBatch) -> Credit:
        """See `Credit`: one number for every action token of a trajectory."""
        outcomes_B = batch.outcomes_B
        groups_B = batch.groups_B
        centred_B = outcomes_B - group_mean(outcomes_B, groups_B)
        std_B = group_std(outcomes_B, groups_B, ddof=self.std_ddof)
        scaled_B = centred_B / (std_B + self.std_eps)
        scaled_B = scaled_B.masked_fill(is_zero_variance(outcomes_B, groups_B), 0.0)
        alone_B = group_size(groups_B) == 1
        advantages_BT = batch.spread(scaled_B.where(~alone_B, outcomes_B / (1 + self.std_eps)))
        return Credit(advantages_BT, advantages_BT)

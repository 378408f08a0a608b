"""Rules of outcomes: one number a trajectory is all that they read of its rewards."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from espalier.algorithms.batch import Credit, CreditBatch
from espalier.algorithms.rule import Rule

if TYPE_CHECKING:
    from torch import Tensor


class OutcomeRule(Rule):
    """Gives the trajectories that could be scored their advantages, and the others 0.

    A trajectory without an outcome (NaN) takes no part: not in its group's statistics, nor in the
    batch's (TRL's treatment of a reward that is None).
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    rewards_counted: Literal["action_tokens", "all_tokens"] = "action_tokens"
    """verl counts what stands on observation and padding tokens as well."""

    @abstractmethod
    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """[B, T], 0 outside the action mask; no outcome is NaN."""

    def credit(self, batch: CreditBatch) -> Credit:
        """See `Credit`; without a critic, returns are the advantages."""
        every = self.rewards_counted == "all_tokens"
        outcomes_B = batch.rewards_BT.sum(dim=1) if every else batch.outcomes_B
        scorable_B = ~outcomes_B.isnan()
        advantages_BT = batch.rewards_BT.new_zeros(batch.rewards_BT.shape)
        if scorable_B.any():
            scored = batch.rows(scorable_B)
            advantages_BT[scorable_B] = self.advantages_BT(outcomes_B[scorable_B], scored)
        return Credit(advantages_BT, advantages_BT)

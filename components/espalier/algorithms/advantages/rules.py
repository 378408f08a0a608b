"""Base classes of the advantage rules: by outcome, and with a critic."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from espalier.algorithms.batch import Credit, CreditBatch, CreditRule
from espalier.algorithms.masking import kept, whiten

if TYPE_CHECKING:
    from torch import Tensor


class OutcomeRule(CreditRule):
    """Base of rules that read only the total reward, one number per trajectory.

    A trajectory without an outcome (NaN) gets 0 and is left out of the statistics of its group and
    of the batch (as TRL does with a reward that is None).
    """

    rewards_counted: Literal["action_tokens", "all_tokens"] = "action_tokens"
    """Which tokens' rewards count; verl also counts those on observation and padding tokens."""

    @abstractmethod
    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """Return [B, T], 0 outside the action mask; an outcome of NaN is missing."""

    def credit(self, batch: CreditBatch) -> Credit:
        """Return the advantages; without a critic, they are also the returns."""
        every = self.rewards_counted == "all_tokens"
        outcomes_B = batch.rewards_BT.sum(dim=1) if every else batch.outcomes_B
        scorable_B = ~outcomes_B.isnan()
        advantages_BT = batch.rewards_BT.new_zeros(batch.rewards_BT.shape)
        if scorable_B.any():
            scored = batch.rows(scorable_B)
            advantages_BT[scorable_B] = self.advantages_BT(outcomes_B[scorable_B], scored)
        return Credit(advantages_BT, advantages_BT)


class CriticRule(CreditRule):
    """Base of rules that read a critic's values; may whiten the advantages."""

    needs: ClassVar[frozenset[str]] = frozenset({"values_BT"})
    compares_groups: ClassVar[bool] = False
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of an action token."""
    whitened: bool = True
    """Whiten the advantages over the action tokens of the batch, as verl always does."""

    @abstractmethod
    def estimate(self, batch: CreditBatch, values_BT: Tensor) -> Credit:
        """Return unwhitened advantages, and returns; values outside the mask are arbitrary."""

    def credit(self, batch: CreditBatch) -> Credit:
        """Return advantages, whitened if set, and returns, which never are."""
        assert batch.values_BT is not None
        mask_BT = batch.action_mask_BT
        advantages_BT, returns_BT = self.estimate(batch, batch.values_BT)
        if self.whitened:
            advantages_BT = whiten(advantages_BT, mask_BT)
        return Credit(advantages_BT, kept(returns_BT, mask_BT))

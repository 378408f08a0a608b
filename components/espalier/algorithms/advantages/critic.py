"""Rules with a critic: advantages against values, and the returns that the critic is fitted to."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from espalier.algorithms.batch import Credit, CreditBatch
from espalier.algorithms.masking import kept
from espalier.algorithms.rule import Rule
from espalier.algorithms.whitening import whiten

if TYPE_CHECKING:
    from torch import Tensor


class CriticRule(Rule):
    """Reads values of states, and whitens its advantages where the profile says so."""

    needs: ClassVar[frozenset[str]] = frozenset({"values_BT"})
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of an action token."""
    whitened: bool = True
    """Whiten the advantages over the action tokens of the batch, as verl always does."""

    @abstractmethod
    def estimate(self, batch: CreditBatch, values_BT: Tensor) -> Credit:
        """What `credit` makes `Credit` of: not whitened, and any returns outside the mask."""

    def credit(self, batch: CreditBatch) -> Credit:
        """See `Credit`; the returns are never whitened."""
        assert batch.values_BT is not None
        mask_BT = batch.action_mask_BT
        advantages_BT, returns_BT = self.estimate(batch, batch.values_BT)
        if self.whitened:
            advantages_BT = whiten(advantages_BT, mask_BT)
        return Credit(advantages_BT, kept(returns_BT, mask_BT))

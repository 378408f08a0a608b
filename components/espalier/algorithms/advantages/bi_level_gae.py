"""Bi-level GAE (VAGEN; Wang et al. 2025, arXiv:2510.16907, sec. 4.2): turns, then their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from espalier.algorithms.advantages.rules import CriticRule
from espalier.algorithms.advantages.segments import locate_turns
from espalier.algorithms.batch import Credit, CreditBatch
from espalier.algorithms.masking import generalized_advantages

if TYPE_CHECKING:
    from torch import Tensor


class BiLevelGae(CriticRule):
    """GAE over the turns, valued at their last tokens, then over the tokens inside each turn.

    A turn's last token gets the turn's return, from which GAE runs back over the tokens before it.
    With `turn_gamma` equal to `gamma` and lambda 1 the result is that of token-level GAE: the rule
    differs by its discount per turn. As released (`compute_bi_level_gae_advantage_return` in VAGEN
    and RAGEN), with a turn's rewards moved to its last token, where upstream expects them.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"values_BT", "turns_BT"})
    name: Literal["bi_level_gae"] = "bi_level_gae"
    turn_gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount of a turn; the released configuration's."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """On both levels."""

    def estimate(self, batch: CreditBatch, values_BT: Tensor) -> Credit:
        """See `CriticRule`."""
        turns, mask_BT = locate_turns(batch), batch.action_mask_BT
        values_BK = turns.at(turns.last_BK, values_BT)
        turn_returns_BK = values_BK + generalized_advantages(
            turns.total(batch.rewards_BT),
            values_BK,
            turns.exist_BK,
            gamma=self.turn_gamma,
            gae_lambda=self.gae_lambda,
        )
        columns_BT = mask_BT.new_ones(mask_BT.shape).cumsum(dim=1) - 1
        ends_turn_BT = mask_BT & (columns_BT == turns.spread(turns.last_BK))
        advantages_BT = generalized_advantages(
            turns.spread(turn_returns_BK) * ends_turn_BT,
            values_BT,
            mask_BT,
            gamma=self.gamma * (~ends_turn_BT).to(values_BT.dtype),
            gae_lambda=self.gae_lambda,
        )
        return Credit(advantages_BT, advantages_BT + values_BT)

"""Generalised advantage estimation by the turn (Turn-PPO; Li et al. 2025, arXiv:2512.17008)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from espalier.algorithms.advantages.rules import CriticRule
from espalier.algorithms.advantages.segments import locate_turns
from espalier.algorithms.batch import Credit, CreditBatch
from espalier.algorithms.masking import generalized_advantages

if TYPE_CHECKING:
    from torch import Tensor


class TurnGae(CriticRule):
    """GAE with a turn as the step: its value is that before its first token, rewards are summed.

    Every token of a turn gets the turn's advantage and return, as in AReaL
    (`_compute_turn_level_gae`). `gamma` is the discount of a turn.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"values_BT", "turns_BT"})
    name: Literal["turn_gae"] = "turn_gae"
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """Lambda of GAE, from turn to turn."""

    def estimate(self, batch: CreditBatch, values_BT: Tensor) -> Credit:
        """Return unwhitened advantages, and returns; values outside the mask are arbitrary."""
        turns = locate_turns(batch)
        values_BK = turns.at(turns.first_BK, values_BT)
        advantages_BK = generalized_advantages(
            turns.total(batch.rewards_BT),
            values_BK,
            turns.exist_BK,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        return Credit(turns.spread(advantages_BK), turns.spread(advantages_BK + values_BK))

"""Rejection-sampling fine-tuning: imitate one's own successes.

RFT (Yuan et al. 2023, arXiv:2308.01825); the same step, iterated, is expert iteration and ReST^EM
(Singh et al. 2023, arXiv:2312.06585).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from espalier.algorithms.material.attempt import Attempt
from espalier.algorithms.rule import Rule


class Successes(Rule):
    """Distinct successful attempts, few of each task, so that easy tasks do not crowd out others.

    Fewer turns and then fewer action tokens go first.
    """

    name: Literal["successes"] = "successes"
    per_task: int = Field(default=4, ge=1)
    """Most successes of one task that a step learns from."""

    def kept(self, attempts_G: Sequence[Attempt]) -> list[int]:
        """Places in the group of the attempts to imitate, in their order."""
        ranked = sorted(
            (g for g, attempt in enumerate(attempts_G) if attempt.is_success),
            key=lambda g: (attempts_G[g].turns, attempts_G[g].action_tokens, g),
        )
        distinct = {attempts_G[g].token_ids: g for g in reversed(ranked)}
        return sorted(
            [g for g in ranked if distinct[attempts_G[g].token_ids] == g][: self.per_task]
        )

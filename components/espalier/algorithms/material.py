"""`material`: which trajectories of a group the loss is trained on.

Policy gradients learn from everything that was admitted; other losses from pairs, or from the
successes. The rules see a trajectory only by its
`AttemptSummary`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from espalier.algorithms.batch import AlgorithmRule


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSummary:
    """The figures of one trajectory that decide whether it is trained on."""

    reward: float
    is_success: bool
    """Whether the verifier accepted its outcome."""
    turns: int
    action_tokens: int
    token_ids: tuple[int, ...]
    """Prompt, actions and observations: trajectories with equal ids are the same."""


class Everything(AlgorithmRule):
    """Every trajectory, weighted by its advantage."""

    name: Literal["everything"] = "everything"


class PreferencePairs(AlgorithmRule):
    """Preference pairs for DPO (Rafailov et al. 2023, arXiv:2305.18290) from one group.

    The attempt with the highest verified reward is paired with the lowest, the second highest with
    the second lowest, and so on, as in online DPO (Guo et al. 2024, arXiv:2402.04792) and
    Agent Q (Putta et al. 2024, arXiv:2408.07199). Among equal rewards, fewer turns rank higher,
    then fewer action tokens: DPO by itself does not prefer short answers.
    """

    name: Literal["pairs"] = "pairs"
    per_group: int = Field(default=1, ge=1)
    """Maximum number of pairs from one group; no attempt is in two of them."""
    min_gap: float = Field(default=0.5, gt=0)
    """Minimum difference of the two rewards; a pair with a smaller one would teach only length."""

    def pairs(self, attempts_G: Sequence[AttemptSummary]) -> list[tuple[int, int]]:
        """(chosen, rejected) as indices into the group; [] if all rewards are too close."""
        ranked = sorted(range(len(attempts_G)), key=lambda g: (_rank(attempts_G[g]), g))
        made: list[tuple[int, int]] = []
        for place in range(min(self.per_group, len(ranked) // 2)):
            chosen, rejected = ranked[place], ranked[-1 - place]
            gap = attempts_G[chosen].reward - attempts_G[rejected].reward
            if gap >= self.min_gap:
                made.append((chosen, rejected))
        return made


def _rank(attempt: AttemptSummary) -> tuple[float, int, int]:
    return -attempt.reward, attempt.turns, attempt.action_tokens


class Successes(AlgorithmRule):
    """Distinct successful attempts to imitate, few per task, so that easy tasks do not dominate.

    Rejection-sampling fine-tuning: RFT (Yuan et al. 2023, arXiv:2308.01825); iterated, it is expert
    iteration and ReST^EM (Singh et al. 2023, arXiv:2312.06585). Fewer turns, then fewer action
    tokens are preferred.
    """

    name: Literal["successes"] = "successes"
    per_task: int = Field(default=4, ge=1)
    """Maximum number of successes of one task that a step trains on."""

    def kept(self, attempts_G: Sequence[AttemptSummary]) -> list[int]:
        """Indices of the attempts to imitate, ascending."""
        ranked = sorted(
            (g for g, attempt in enumerate(attempts_G) if attempt.is_success),
            key=lambda g: (attempts_G[g].turns, attempts_G[g].action_tokens, g),
        )
        distinct = {attempts_G[g].token_ids: g for g in reversed(ranked)}
        return sorted(
            [g for g in ranked if distinct[attempts_G[g].token_ids] == g][: self.per_task]
        )


MaterialRule = Annotated[Everything | PreferencePairs | Successes, Field(discriminator="name")]

__all__ = [
    "AttemptSummary",
    "Everything",
    "MaterialRule",
    "PreferencePairs",
    "Successes",
]

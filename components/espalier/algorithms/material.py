"""`material`: which trajectories of a group the loss is trained on.

Policy gradients train on everything that was admitted, or on the attempts whose rewards differ
most; other losses train on pairs, or on the successes. The rules see a trajectory only by its
`AttemptSummary`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import pvariance
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


class MostVaried(AlgorithmRule):
    """The attempts of a group whose rewards have the largest variance: some best and some worst.

    Max-variance down-sampling (PODS, Xu et al. 2025, arXiv:2504.13818, thm. 1). Sampling an attempt
    costs less than training on it: many are sampled, so that some succeed and some fail, and few
    are trained on. Advantages are computed from the attempts that are kept.
    """

    name: Literal["max_variance"] = "max_variance"
    keep: int | None = Field(default=None, ge=2)
    """Number of attempts of each group that are trained on, or all of a smaller group; unset, a
    quarter of the group and at least two."""

    def learned(self, group_size: int) -> int:
        """Return how many attempts of a group are trained on."""
        return min(group_size, self.keep or max(2, group_size // 4))

    def kept(self, attempts_G: Sequence[AttemptSummary]) -> list[int]:
        """Return the indices of the attempts to train on, ascending."""
        ranked = sorted(range(len(attempts_G)), key=lambda g: attempts_G[g].reward)
        keep = self.learned(len(ranked))
        if len(ranked) <= keep:
            return sorted(ranked)

        def variance(lowest: int) -> float:
            return pvariance([attempts_G[g].reward for g in _ends(ranked, lowest, keep)])

        balanced = keep // 2  # among equal variances, as many of the best as of the worst
        lowest = max(range(keep + 1), key=lambda low: (variance(low), -abs(low - balanced)))
        return sorted(_ends(ranked, lowest, keep))


def _ends(ranked: Sequence[int], lowest: int, keep: int) -> list[int]:
    """Return the first `lowest` of `ranked`, and from its end as many as make `keep` in all."""
    return [*ranked[:lowest], *ranked[len(ranked) - (keep - lowest) :]]


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


MaterialRule = Annotated[
    Everything | MostVaried | PreferencePairs | Successes, Field(discriminator="name")
]

__all__ = [
    "AttemptSummary",
    "Everything",
    "MaterialRule",
    "MostVaried",
    "PreferencePairs",
    "Successes",
]

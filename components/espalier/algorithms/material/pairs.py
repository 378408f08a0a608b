"""Preference pairs from groups, for DPO (Rafailov et al. 2023, arXiv:2305.18290).

The attempts at one task under one policy are ranked by their verified reward, as in online DPO
(Guo et al. 2024, arXiv:2402.04792) and Agent Q (Putta et al. 2024, arXiv:2408.07199), instead of by
a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from espalier.algorithms.material.attempt import Attempt
from espalier.algorithms.rule import Rule


class PreferencePairs(Rule):
    """The best attempt of a group against its worst, the second best against the second worst, ...

    Among equal rewards, the one with fewer turns is better, then the one with fewer action tokens:
    a chosen answer is then as short as its group offers, which DPO by itself does not care for.
    """

    name: Literal["pairs"] = "pairs"
    per_group: int = Field(default=1, ge=1)
    """Most pairs of one group; no attempt is in two."""
    min_gap: float = Field(default=0.5, gt=0)
    """Least difference of the two rewards; below it a pair would teach length alone."""

    def pairs(self, attempts_G: Sequence[Attempt]) -> list[tuple[int, int]]:
        """(chosen, rejected) by their places in the group; none where nothing tells them apart."""
        ranked = sorted(range(len(attempts_G)), key=lambda g: (_rank(attempts_G[g]), g))
        made: list[tuple[int, int]] = []
        for place in range(min(self.per_group, len(ranked) // 2)):
            chosen, rejected = ranked[place], ranked[-1 - place]
            gap = attempts_G[chosen].reward - attempts_G[rejected].reward
            if gap >= self.min_gap:
                made.append((chosen, rejected))
        return made


def _rank(attempt: Attempt) -> tuple[float, int, int]:
    return -attempt.reward, attempt.turns, attempt.action_tokens

"""How much a task teaches at its pass rate: what self-play pays the challengers who pose tasks.

Papers and public code differ, so every name says whose rule it is. R-Zero's code pays
min(p, 1 - p), half of the paper's reward, which is the same preference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

Preference = Literal["even", "r_zero", "absolute_zero", "absolute_zero_code"]


def r_zero(pass_rate: float) -> float:
    """1 - 2 |p - 1/2|: most for a task that is solved every other time (arXiv:2508.05004)."""
    return 1 - 2 * abs(pass_rate - 0.5)


def r_zero_code(pass_rate: float) -> float:
    """min(p, 1 - p): half of the paper's reward (`compute_score` of the public code)."""
    return min(pass_rate, 1 - pass_rate)


def absolute_zero(pass_rate: float) -> float:
    """1 - p: the harder the better (arXiv:2505.03335, eq. 4)."""
    return 1 - pass_rate


def absolute_zero_code(pass_rate: float) -> float:
    """1 - p, and nothing for a task that nobody solved (`one_minus` of the public code)."""
    return 1 - pass_rate if pass_rate > 0 else 0.0


LEARNABILITY: Mapping[Preference, Callable[[float], float]] = {
    "even": lambda _: 1.0,
    "r_zero": r_zero,
    "absolute_zero": absolute_zero,
    "absolute_zero_code": absolute_zero_code,
}
"""Name in the profile -> weight of a task at its pass rate."""

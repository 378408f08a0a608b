"""How much a task teaches at its pass rate: the band worth sampling, and weights inside it.

Papers and public code differ, so every name tells the source of the rule. R-Zero's code gives
min(p, 1 - p), half of the paper's reward, which is the same preference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from espalier.records import Task


def keep_learnable(
    tasks: Sequence[Task], pass_rates: Mapping[str, float], band: tuple[float, float]
) -> list[Task]:
    """Return the tasks whose pass rate lies inside `band` (ends included), in their order.

    A task that is always solved, or never, gives every member of its group the same reward.
    """
    low, high = band
    return [task for task in tasks if low <= pass_rates[task.task_id] <= high]


Preference = Literal["even", "r_zero", "absolute_zero", "absolute_zero_code"]


def r_zero(pass_rate: float) -> float:
    """1 - 2 |p - 1/2|: largest for a task that is solved half of the time (arXiv:2508.05004)."""
    return 1 - 2 * abs(pass_rate - 0.5)


def r_zero_code(pass_rate: float) -> float:
    """Return min(p, 1 - p): half of the paper's reward (`compute_score` of the public code)."""
    return min(pass_rate, 1 - pass_rate)


def absolute_zero(pass_rate: float) -> float:
    """Return 1 - p: the harder the task, the larger (arXiv:2505.03335, eq. 4)."""
    return 1 - pass_rate


def absolute_zero_code(pass_rate: float) -> float:
    """Return 1 - p, and 0 for a task that was never solved (`one_minus` of the public code)."""
    return 1 - pass_rate if pass_rate > 0 else 0.0


LEARNABILITY: Mapping[Preference, Callable[[float], float]] = {
    "even": lambda _: 1.0,
    "r_zero": r_zero,
    "absolute_zero": absolute_zero,
    "absolute_zero_code": absolute_zero_code,
}
"""Weight of a task at its pass rate, by the rule's name in the profile."""

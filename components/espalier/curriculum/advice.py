"""Advice on what to change if the curriculum has too few tasks to learn from."""

from __future__ import annotations

from collections.abc import Sequence

from espalier.config import Profile

_MOSTLY = 0.8
"""Share of the tasks outside the band that decides which way to go."""
_EASIER = (
    "raise warm_start.steps or synthesis.trajectories, or ask easier questions (more weight on the "
    "first of synthesis.chain_weights)"
)
_HARDER = (
    "lower warm_start.steps or synthesis.trajectories, or ask harder questions (more weight on the "
    "later of synthesis.chain_weights; synthesis.intersection_weight, .union_weight or "
    ".expansion.share)"
)


def advice_line(pass_rates: Sequence[float], profile: Profile) -> str:
    """Return a warning on tasks that teach too little, with what to change; or an empty text.

    Args:
        pass_rates: pass rate of every candidate, 0-1.
        profile: profile of the run; a training step draws `training.tasks_per_step` tasks.
    """
    if not pass_rates or profile.curriculum.draw not in ("band", "kinds"):
        return ""  # the other draws choose among all tasks
    low, high = profile.curriculum.pass_rate_band
    too_hard = sum(rate < low for rate in pass_rates)
    too_easy = sum(rate > high for rate in pass_rates)
    kept, wanted = len(pass_rates) - too_hard - too_easy, profile.training.tasks_per_step
    if kept >= wanted:
        return ""
    left = "training will draw from all tasks" if not kept else "training will repeat these"
    found = (
        f"warning: {kept} of {len(pass_rates)} candidates lie inside curriculum.pass_rate_band="
        f"{[low, high]}, and a step draws {wanted} (training.tasks_per_step); {too_easy} are above "
        f"it, {too_hard} below (mean pass rate {sum(pass_rates) / len(pass_rates):.2f}); {left}. "
    )
    return found + _remedy(too_easy, too_hard, len(pass_rates), wanted)


def _remedy(too_easy: int, too_hard: int, candidates: int, wanted: int) -> str:
    if candidates < wanted:
        return (
            f"The tasks are too few: {wanted} or more are needed. Add documents, question/answer "
            "pairs or triples, or raise curriculum.candidates if it is the limit"
        )
    outside = too_easy + too_hard
    if too_easy >= _MOSTLY * outside:
        return f"The tasks are too easy for the warm-started policy: {_HARDER}"
    if too_hard >= _MOSTLY * outside:
        return f"The tasks are too hard for the warm-started policy: {_EASIER}"
    return (
        "Each task is solved always or never: raise curriculum.rollouts_per_task, which tells the "
        "rates in between, or add tasks in between"
    )

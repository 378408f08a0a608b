"""Which tasks are worth sampling: the band of pass rates in which a group carries signal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from espalier.records import Task


def keep_learnable(
    tasks: Sequence[Task], pass_rates: Mapping[str, float], band: tuple[float, float]
) -> list[Task]:
    """Tasks whose pass rate lies inside `band` (both ends included), in their order.

    A task that is always solved, or never, gives every member of its group the same reward.
    """
    low, high = band
    return [task for task in tasks if low <= pass_rates[task.task_id] <= high]

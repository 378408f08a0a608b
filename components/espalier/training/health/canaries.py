"""Canaries: dev questions whose answer nobody can find. One that is right shows a false verdict.

They are asked at each dev evaluation, and enter no update and no other figure.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from espalier.environments import Family, MakesCanaries
from espalier.records import Task
from espalier.records.trajectory import Trajectory


def canaries_of(family: Family[Any], tasks: Iterable[Task], count: int, seed: int) -> list[Task]:
    """Return copies of tasks whose right answer is a random one, which nobody can find.

    Args:
        family: the family of the tasks, or a mixture. Of a member without `MakesCanaries` there are
            none.
        tasks: dev questions.
        count: the most to return.
        seed: seed of the answers.
    """
    rng, canaries = random.Random(f"canaries/{seed}"), list[Task]()
    for task in tasks:
        if len(canaries) == count:
            break
        if isinstance(member := family.of(task), MakesCanaries):
            gold = (member.unfindable_answer(rng),)
            unknown = {
                "task_id": f"canary-{task.task_id}",
                "verifier": task.verifier.model_copy(update={"gold": gold}),
            }
            canaries.append(task.model_copy(update=unknown))
    return canaries


def right_share(attempts: Sequence[Trajectory]) -> float | None:
    """Return the share of attempts that count as right; None if all are lost."""
    judged = [attempt.is_right for attempt in attempts if not attempt.is_lost]
    return sum(judged) / len(judged) if judged else None

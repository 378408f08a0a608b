"""How a step's tasks are chosen from the pool: one function for each value of `curriculum.draw`.

Each gives a `Choose`, which proposes tasks until enough unused ones are found. A choice is a
function of the generator and of what was observed, so that a resumed run draws as an unbroken one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

Choose = Callable[[random.Random, Set[str]], str]
"""Generator and used ids -> an id, which may be one of the used; then it is asked again. Some task
is unused."""


def uniform(task_ids: Sequence[str]) -> Choose:
    """All tasks alike."""
    return lambda rng, _: task_ids[rng.randrange(len(task_ids))]


def over_patterns(ids_by_pattern: Mapping[str, Sequence[str]]) -> Choose:
    """All patterns alike, and the unused tasks of a pattern alike: rare patterns are not rare."""
    groups = list(ids_by_pattern.values())

    def choose(rng: random.Random, used: Set[str]) -> str:
        group = groups[rng.randrange(len(groups))]
        unused = [task_id for task_id in group if task_id not in used]
        return unused[rng.randrange(len(unused))] if unused else group[0]

    return choose


class Band(NamedTuple):
    """A pool's tasks by whether their pass rate is inside the band."""

    kept: Sequence[str]
    others: Sequence[str]
    all_tasks: Sequence[str]


def from_band(band: Band, explore_share: float, weights: Mapping[str, float]) -> Choose:
    """The tasks inside the band, and a share of those outside.

    Args:
        band: of the pool.
        explore_share: how often a task from outside is proposed.
        weights: of the kept tasks; empty where all weigh the same.
    """

    def choose(rng: random.Random, used: Set[str]) -> str:
        outside = band.others and rng.random() < explore_share
        source = band.others if outside else band.kept
        is_open = any(task_id not in used for task_id in source)
        candidates = source if is_open else band.all_tasks
        if weights and candidates is band.kept:
            return _preferred(candidates, weights, used, rng)
        return candidates[rng.randrange(len(candidates))]

    return choose


def _preferred(
    candidates: Sequence[str], weights: Mapping[str, float], used: Set[str], rng: random.Random
) -> str:
    """Draw an unused candidate by weight; uniformly if all weights are 0."""
    free = [task_id for task_id in candidates if task_id not in used]
    total = sum(weights[task_id] for task_id in free)
    return rng.choices(free, [weights[t] for t in free] if total > 0 else None)[0]

"""How a step's tasks are chosen from the pool: one function for each value of `curriculum.draw`.

Each gives a `Choose`, which proposes tasks until enough unused ones are found. A choice is a
function of the generator and of what was observed, so that a resumed run draws as an unbroken one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from espalier.curriculum.prediction import FloatArray, PassRatePredictor, mixed_chance

_SHARPNESS = 6.0
"""Exponent of the chance in a task's weight. 6 told 8 % more by the rollout than 2 in simulation
(tests.benchmarks.curriculum_simulation)."""
_FRONTIER = (0.2, 0.8)
"""Pass rates between which a pattern is neither out of reach nor learned."""

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


def by_prediction(
    predictor: PassRatePredictor, *, rollouts: int, explore_share: float, rng: random.Random
) -> Choose:
    """Tasks in proportion to a power of the chance that their next rollouts hold both outcomes.

    Args:
        predictor: of the pool's tasks.
        rollouts: of a task before it is dropped: the screening's, or the group's without one.
        explore_share: how often any task is proposed.
        rng: draws what the regression's weights may be.
    """
    chances_N = mixed_chance(*predictor.posteriors(rng), rollouts)
    return _weighted(predictor.task_ids, chances_N**_SHARPNESS, explore_share)


def from_frontier(predictor: PassRatePredictor, explore_share: float) -> Choose:
    """Tasks never tried before, of the patterns that are solved now and then.

    Where none is left, tried ones of those patterns; where there is no such pattern, all tasks.

    Args:
        predictor: of the pool's tasks.
        explore_share: how often any task is proposed.
    """
    wins_N, losses_N = predictor.posteriors()
    pattern_N = predictor.patterns
    means = np.bincount(pattern_N, weights=wins_N / (wins_N + losses_N)) / np.bincount(pattern_N)
    low, high = _FRONTIER
    inside_N = ((means >= low) & (means <= high))[pattern_N]
    untried_N = inside_N & predictor.untried()
    weights_N = untried_N if untried_N.any() else inside_N
    return _weighted(predictor.task_ids, weights_N.astype(float), explore_share)


def _weighted(task_ids: Sequence[str], weights_N: FloatArray, explore_share: float) -> Choose:
    """Unused tasks by weight; all alike for a share of the proposals, or if no weight is left."""
    places = {task_id: place for place, task_id in enumerate(task_ids)}
    left_N = weights_N.copy()
    removed: set[str] = set()

    def choose(rng: random.Random, used: Set[str]) -> str:
        explores = rng.random() < explore_share
        left_N[[places[task_id] for task_id in used - removed]] = 0.0
        removed.update(used)
        ends_N = np.cumsum(left_N)
        if explores or not ends_N[-1] > 0:
            return task_ids[rng.randrange(len(task_ids))]
        place = int(np.searchsorted(ends_N, rng.random() * ends_N[-1], side="right"))
        return task_ids[min(place, len(task_ids) - 1)]

    return choose


def _preferred(
    candidates: Sequence[str], weights: Mapping[str, float], used: Set[str], rng: random.Random
) -> str:
    """Draw an unused candidate by weight; uniformly if all weights are 0."""
    free = [task_id for task_id in candidates if task_id not in used]
    total = sum(weights[task_id] for task_id in free)
    return rng.choices(free, [weights[t] for t in free] if total > 0 else None)[0]

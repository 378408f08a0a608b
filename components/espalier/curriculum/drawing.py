"""How a step's tasks are chosen from the pool: one function for each value of `curriculum.draw`.

Each returns a `Choose`, which proposes tasks until enough unused ones are chosen. A choice depends
only on the generator and on what was observed, so that a resumed run draws as an unbroken one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from espalier.curriculum.prediction import FloatArray, PassRatePredictor, mixed_chance

_SHARPNESS = 6.0
"""Exponent of the chance in a task's weight. In simulation, rollouts at 6 were 8 % more informative
than at 2 (tests.benchmarks.curriculum_simulation)."""
_FRONTIER = (0.2, 0.8)
"""Pass rates between which a pattern is neither out of reach nor learned."""

Choose = Callable[[random.Random, Set[str]], str]
"""Returns an id, given the generator and the used ids; if the id is used, it is called again. At
least one task is unused."""


def uniform(task_ids: Sequence[str]) -> Choose:
    """Return a choice with equal weights for all tasks."""
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
    """A pool's tasks, inside and outside the pass-rate band."""

    kept: Sequence[str]
    others: Sequence[str]
    all_tasks: Sequence[str]


def from_band(band: Band, explore_share: float, weights: Mapping[str, float]) -> Choose:
    """Return a choice of tasks inside the band, and of a share of those outside.

    Args:
        band: the pool's tasks by the band.
        explore_share: share of proposals from outside the band.
        weights: weights of the kept tasks; empty if all are equal.
    """

    def choose(rng: random.Random, used: Set[str]) -> str:
        outside = band.others and rng.random() < explore_share
        source = band.others if outside else band.kept
        is_open = any(task_id not in used for task_id in source)
        candidates = source if is_open else band.all_tasks
        if weights and candidates is band.kept:
            # an unused one by weight; uniformly if all weights are 0
            free = [task_id for task_id in candidates if task_id not in used]
            total = sum(weights[task_id] for task_id in free)
            return rng.choices(free, [weights[t] for t in free] if total > 0 else None)[0]
        return candidates[rng.randrange(len(candidates))]

    return choose


def by_prediction(
    predictor: PassRatePredictor, *, rollouts: int, explore_share: float, rng: random.Random
) -> Choose:
    """Return a choice weighted by a power of the chance that a task's rollouts are mixed.

    Args:
        predictor: predictor of the pool's tasks.
        rollouts: rollouts of a task before it may be dropped: the screening's, or else the group's.
        explore_share: share of proposals from all tasks.
        rng: samples the regression's weights.
    """
    chances_N = mixed_chance(*predictor.posteriors(rng), rollouts)
    return _weighted(predictor.task_ids, chances_N**_SHARPNESS, explore_share)


def from_frontier(predictor: PassRatePredictor, explore_share: float) -> Choose:
    """Return a choice of untried tasks, of the patterns that are sometimes solved.

    If none is left, tried tasks of those patterns are chosen; without such a pattern, all tasks.

    Args:
        predictor: predictor of the pool's tasks.
        explore_share: share of proposals from all tasks.
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
    """Return a choice by weight; uniform for a share of proposals, or if no weight is left."""
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

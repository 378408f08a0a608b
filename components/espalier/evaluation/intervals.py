"""Bootstrap percentile intervals of means (Efron 1979). N questions, R resamples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_DRAWS_AT_ONCE = 1 << 21
"""Indices drawn in one piece: 16 MiB. The pieces do not change what is drawn."""


class Interval(NamedTuple):
    """A mean, and the percentile interval of its bootstrap distribution."""

    mean: float
    low: float
    high: float


def mean_interval(values_N: ArrayLike, *, resamples: int, confidence: float, seed: int) -> Interval:
    """The mean of `values_N` with its interval.

    Args:
        values_N: [N] numbers or booleans, one a question; N at least 1.
        resamples: questions are drawn with replacement, N at a time, so often.
        confidence: share of the resampled means inside the interval, half of the rest on each side.
        seed: of the draw.

    Raises:
        ValueError: no values, or some that are not finite.
    """
    values = np.asarray(values_N, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise ValueError(f"a mean needs a row of finite values, not shape {values.shape}")
    means_R = _resampled_means(values, resamples, np.random.default_rng(seed))
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(means_R, [tail, 1.0 - tail])
    return Interval(float(values.mean()), float(low), float(high))


def paired_difference(
    a_N: ArrayLike, b_N: ArrayLike, *, resamples: int, confidence: float, seed: int
) -> Interval:
    """The mean of a - b over the same questions, with its interval; see `mean_interval`.

    Questions are resampled as pairs, so that how hard each is does not widen the interval.

    Raises:
        ValueError: the two do not answer the same number of questions.
    """
    a, b = np.asarray(a_N, dtype=np.float64), np.asarray(b_N, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"pairs need equal lengths, not {a.shape} and {b.shape}")
    return mean_interval(a - b, resamples=resamples, confidence=confidence, seed=seed)


def _resampled_means(
    values: NDArray[np.float64], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    rows_at_once = max(1, _DRAWS_AT_ONCE // values.size)
    means = np.empty(resamples)
    for start in range(0, resamples, rows_at_once):
        rows = min(rows_at_once, resamples - start)
        drawn = rng.integers(values.size, size=(rows, values.size))
        means[start : start + rows] = values[drawn].mean(axis=1)
    return means

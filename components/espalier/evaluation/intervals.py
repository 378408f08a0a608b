"""Bootstrap percentile intervals of means (Efron 1979), drawn by scipy. N questions, R resamples.

With one seed scipy draws the same resamples as plain numpy does, so the digits are those of numpy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

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
    mean = float(values.mean())
    if values.size == 1:  # scipy refuses a single value; every resample of it is that value
        return Interval(mean, mean, mean)
    from scipy import stats  # takes a second to import, which commands that only read a run save

    found = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=resamples,
        batch=max(1, _DRAWS_AT_ONCE // values.size),
        vectorized=True,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(mean, float(found.low), float(found.high))


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

"""Estimates over questions: bootstrap intervals of means, pass@k and pass^k.

Percentile intervals (Efron 1979) come from scipy, which for a given seed draws the same resamples
as plain numpy. Axes: N questions.
"""

from __future__ import annotations

from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

_DRAWS_AT_ONCE = 1 << 21
"""Indices drawn in one batch: 16 MiB. The batch size does not change the draws."""


class Interval(NamedTuple):
    """A mean with the percentile interval of its bootstrap distribution."""

    mean: float
    low: float
    high: float


def mean_interval(values_N: ArrayLike, *, resamples: int, confidence: float, seed: int) -> Interval:
    """The mean of `values_N` with its interval.

    Args:
        values_N: [N] numbers or booleans, one per question; N at least 1.
        resamples: number of resamples of N questions, with replacement.
        confidence: share of the resampled means inside the interval; the rest is halved between
            both sides.
        seed: seed of the resampling.

    Raises:
        ValueError: no values, or some that are not finite.
    """
    values = np.asarray(values_N, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise ValueError(f"a mean needs a list of finite values, not shape {values.shape}")
    mean = float(values.mean())
    if values.size == 1:  # scipy refuses a single value; every resample of it is that value
        return Interval(mean, mean, mean)
    from scipy import (
        stats,
    )  # slow to import: commands that only read a run skip it

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

    Questions are resampled as pairs, so that differences in difficulty do not widen the interval.

    Raises:
        ValueError: `a_N` and `b_N` differ in length.
    """
    a, b = np.asarray(a_N, dtype=np.float64), np.asarray(b_N, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"pairs need equal lengths, not {a.shape} and {b.shape}")
    return mean_interval(a - b, resamples=resamples, confidence=confidence, seed=seed)


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Chance that at least one of k sampled answers is right; unbiased: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021, arXiv:2107.03374, eq. 1.

    Args:
        num_samples: n, answers drawn for the question.
        num_correct: c, the right ones among them.
        k: number of answers of which at least one must be right.

    Returns:
        0-1, from exact binomials. The estimate is 1 if fewer than k answers are wrong, and so for
        every c when n < k, as in the reference implementation (openai/human-eval): a caller has to
        refuse such a k.

    Raises:
        ValueError: c is not between 0 and n, or k is not positive.
    """
    if not 0 <= num_correct <= num_samples or k < 1:
        raise ValueError(f"no pass@{k} of {num_correct} right answers out of {num_samples}")
    if num_samples - num_correct < k:
        return 1.0
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def pass_hat_k(num_trials: int, num_successes: int, k: int) -> float:
    """Chance that all of k attempts succeed, a measure of reliability; unbiased: C(c, k) / C(n, k).

    Yao et al. 2024, arXiv:2406.12045, sec. 3. tau-bench sets n to the largest number of trials of
    any task, so that missing trials of a task count as failed.

    Args:
        num_trials: n, attempts at the task.
        num_successes: c, the successful ones.
        k: number of attempts that must all succeed.

    Returns:
        0-1, from exact binomials.

    Raises:
        ValueError: c is not between 0 and n, or k is not between 1 and n.
    """
    if not 0 <= num_successes <= num_trials or not 1 <= k <= num_trials:
        raise ValueError(f"no pass^{k} of {num_successes} successes in {num_trials} trials")
    return comb(num_successes, k) / comb(num_trials, k)

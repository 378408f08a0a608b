"""pass^k: the chance that all of k attempts at a task succeed, the measure of reliability."""

from __future__ import annotations

from math import comb


def pass_hat_k(num_trials: int, num_successes: int, k: int) -> float:
    """Unbiased estimate for one task: C(c, k) / C(n, k).

    Yao et al. 2024, arXiv:2406.12045, sec. 3. tau-bench takes for n the most trials that any task
    of the set had, so that a task with fewer counts as if the missing ones had failed.

    Args:
        num_trials: n, attempts at the task.
        num_successes: c, those that succeeded.
        k: how many attempts must all succeed.

    Returns:
        0-1, exact in the integers.

    Raises:
        ValueError: c is not between 0 and n, or k is not between 1 and n.
    """
    if not 0 <= num_successes <= num_trials or not 1 <= k <= num_trials:
        raise ValueError(f"no pass^{k} of {num_successes} successes in {num_trials} trials")
    return comb(num_successes, k) / comb(num_trials, k)

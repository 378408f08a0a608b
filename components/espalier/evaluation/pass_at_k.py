"""pass@k: the chance that at least one of k sampled answers is right."""

from __future__ import annotations

from math import comb


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate for one question: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021, arXiv:2107.03374, eq. 1.

    Args:
        num_samples: n, answers drawn for the question.
        num_correct: c, those that were right.
        k: how many answers one may hand in.

    Returns:
        0-1, exact in the integers for n >= k. Where fewer than k of the answers are wrong the
        estimate is 1; that is so for every c when n < k, as in the reference implementation
        (openai/human-eval): refuse such a k before asking.

    Raises:
        ValueError: c is not between 0 and n, or k is not positive.
    """
    if not 0 <= num_correct <= num_samples or k < 1:
        raise ValueError(f"no pass@{k} of {num_correct} right answers out of {num_samples}")
    if num_samples - num_correct < k:
        return 1.0
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)

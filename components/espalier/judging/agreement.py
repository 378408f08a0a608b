"""Agreement of judges beyond chance: Fleiss' and Cohen's kappa."""

from __future__ import annotations

import math
from collections.abc import Sequence


def fleiss_kappa(votes: Sequence[Sequence[int]]) -> float:
    """Return Fleiss' kappa of items that n judges each put into one of several categories.

    Fleiss 1971, Psychological Bulletin 76(5), eq. 1-7.

    Args:
        votes: for each item, how many judges chose each category; the sums are all n, at least 2.

    Returns:
        1 for full agreement, 0 for chance agreement, negative below it; NaN if nothing was judged
        or every vote fell on one category, so that chance alone explains it.
    """
    if not votes:
        return math.nan
    judges = sum(votes[0])
    assert judges > 1, "agreement needs two judges"
    assert all(sum(item) == judges for item in votes), "all judges judge each item"
    pairs = judges * (judges - 1)
    agreed = sum(sum(n * (n - 1) for n in item) / pairs for item in votes) / len(votes)
    shares = [sum(category) / (judges * len(votes)) for category in zip(*votes, strict=True)]
    return _beyond_chance(agreed, sum(share**2 for share in shares))


def cohen_kappa(pairs: Sequence[tuple[bool, bool]]) -> float:
    """Return Cohen's kappa of two raters with different biases (Cohen 1960).

    Args:
        pairs: the answers of the first and the second rater to each item.

    Returns:
        The same scale as `fleiss_kappa`.
    """
    if not pairs:
        return math.nan
    agreed = sum(one == other for one, other in pairs) / len(pairs)
    first, second = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    return _beyond_chance(agreed, first * second + (1 - first) * (1 - second))


def expected_kappa(*, share_yes: float, flip: float) -> float:
    """Return Fleiss' kappa of judges who each flip the true answer with probability `flip`.

    Args:
        share_yes: share of items whose true answer is yes.
        flip: the same for every judge; judges flip independently.
    """
    said_yes = share_yes * (1 - flip) + (1 - share_yes) * flip
    agreed = (1 - flip) ** 2 + flip**2
    return _beyond_chance(agreed, said_yes**2 + (1 - said_yes) ** 2)


def _beyond_chance(agreed: float, by_chance: float) -> float:
    return math.nan if by_chance >= 1 else (agreed - by_chance) / (1 - by_chance)

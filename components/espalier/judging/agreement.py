"""How far judges agree beyond chance."""

from __future__ import annotations

import math
from collections.abc import Sequence


def fleiss_kappa(votes: Sequence[Sequence[int]]) -> float:
    """Fleiss' kappa of items that were each put into one of several categories by n judges.

    Fleiss 1971, Psychological Bulletin 76(5), eq. 1-7.

    Args:
        votes: for each item, how many judges chose each category; the sums are all n, at least 2.

    Returns:
        1 for full agreement, 0 for that of chance, negative below it; NaN where nothing was judged
        or every vote fell on one category, so that chance alone explains it.
    """
    if not votes:
        return math.nan
    judges = sum(votes[0])
    assert judges > 1, "one judge agrees with nobody"
    assert all(sum(item) == judges for item in votes), "each item is judged by all"
    pairs = judges * (judges - 1)
    agreed = sum(sum(n * (n - 1) for n in item) / pairs for item in votes) / len(votes)
    shares = [sum(category) / (judges * len(votes)) for category in zip(*votes, strict=True)]
    return _beyond_chance(agreed, sum(share**2 for share in shares))


def cohen_kappa(pairs: Sequence[tuple[bool, bool]]) -> float:
    """Agreement of two raters beyond chance, each with a bias of its own (Cohen 1960).

    Args:
        pairs: what the one and the other said of each item.

    Returns:
        As `fleiss_kappa`.
    """
    if not pairs:
        return math.nan
    agreed = sum(one == other for one, other in pairs) / len(pairs)
    first, second = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    return _beyond_chance(agreed, first * second + (1 - first) * (1 - second))


def expected_kappa(*, share_yes: float, flip: float) -> float:
    """Fleiss' kappa of judges who each see the truth and say the opposite with probability `flip`.

    Args:
        share_yes: of items whose truth is yes.
        flip: the same for each judge, independent of the others.
    """
    said_yes = share_yes * (1 - flip) + (1 - share_yes) * flip
    agreed = (1 - flip) ** 2 + flip**2
    return _beyond_chance(agreed, said_yes**2 + (1 - said_yes) ** 2)


def _beyond_chance(agreed: float, by_chance: float) -> float:
    return math.nan if by_chance >= 1 else (agreed - by_chance) / (1 - by_chance)

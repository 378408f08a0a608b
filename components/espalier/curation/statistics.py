"""How many, how long and how various the texts of a set are."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean

from espalier.knowledge.folding import words


def diversity(texts: Iterable[str]) -> dict[str, float]:
    """Rows, words a row, vocabulary, and the share of word pairs that are different ones."""
    folded = [words(text) for text in texts]
    pairs = [pair for found in folded for pair in pairwise(found)]
    return {
        "rows": len(folded),
        "mean_words": round(fmean(map(len, folded)), 2) if folded else 0.0,
        "vocabulary": len({word for found in folded for word in found}),
        "distinct_pair_share": round(len(set(pairs)) / len(pairs), 4) if pairs else 0.0,
    }

"""Near-duplicates: MinHash finds the candidates (Broder 1997), exact overlap decides."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from espalier.knowledge.folding import words

RUN_WORDS = 3
_BANDS, _ROWS = 32, 4
"""A pair of overlap s becomes a candidate with 1 - (1 - s^4)^32: 0.99999994 at 0.8, 0.87 at 0.5."""
_SEED = 20260101

Signature = NDArray[np.uint64]


def near_duplicates(texts: Sequence[str], threshold: float) -> dict[int, int]:
    """Row -> the earlier, kept row that it repeats; a row that repeats none is not in it.

    Args:
        texts: in the order in which they are kept.
        threshold: least Jaccard overlap of 3-word runs that makes a repetition.
    """
    multipliers, offsets = _hash_family()
    kept: dict[int, frozenset[int]] = {}
    buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    found: dict[int, int] = {}
    for row, text in enumerate(texts):
        runs = word_runs(text)
        keys = _band_keys(_signature(runs, multipliers, offsets))
        candidates = sorted({other for key in keys for other in buckets[key]})
        original = next((c for c in candidates if overlap(runs, kept[c]) >= threshold), None)
        if original is not None:
            found[row] = original
            continue
        kept[row] = runs
        for key in keys:
            buckets[key].append(row)
    return found


def word_runs(text: str) -> frozenset[int]:
    """Hashes of every run of three folded words; of the whole text where it is shorter."""
    found = words(text)
    count = max(1, len(found) - RUN_WORDS + 1)
    return frozenset(_hash(" ".join(found[i : i + RUN_WORDS])) for i in range(count))


def overlap(one: frozenset[int], other: frozenset[int]) -> float:
    """Jaccard overlap of two sets, 0-1."""
    return len(one & other) / len(one | other)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _hash_family() -> tuple[Signature, Signature]:
    """Multiply-shift functions: odd multipliers and offsets of 64 bits."""
    rng = np.random.default_rng(_SEED)
    drawn = rng.integers(0, 2**64, size=(2, _BANDS * _ROWS), dtype=np.uint64)
    return drawn[0] | np.uint64(1), drawn[1]


def _signature(runs: frozenset[int], multipliers: Signature, offsets: Signature) -> Signature:
    hashes = np.fromiter(runs, dtype=np.uint64, count=len(runs))
    return (hashes[:, None] * multipliers + offsets).min(axis=0)  # wraps around, as it should


def _band_keys(signature: Signature) -> list[tuple[int, bytes]]:
    bands = signature.reshape(_BANDS, _ROWS)
    return [(number, band.tobytes()) for number, band in enumerate(bands)]

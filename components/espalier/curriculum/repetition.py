"""The repetition in a batch of questions: clusters by BLEU, as R-Zero penalises them.

Huang et al. 2025 (arXiv:2508.05004), sec. 3.1: distances 1 - BLEU, agglomerative clustering by
average linkage, and for each question the share of the batch that its cluster holds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ORDER = 4
_SMOOTHING = 0.1
"""Count of matches where there are none (method 1 of Chen and Cherry 2014): sentences that share
words but no phrase of four are still closer than sentences that share no word."""

Counts = tuple[Counter[tuple[str, ...]], ...]


def cluster_shares(questions: Sequence[str], max_distance: float) -> list[float]:
    """Return for each question the share of all questions that are in its cluster.

    Args:
        questions: texts with words separated by spaces.
        max_distance: clusters are merged while their mean distance, 1 - BLEU, is below this.

    Returns:
        One share per question, in (0, 1]; 1 / len(questions) if it is alone in its cluster.
    """
    sizes = Counter(labels := clusters(bleu_distances(questions), max_distance))
    return [sizes[label] / len(questions) for label in labels]


def bleu_distances(questions: Sequence[str]) -> NDArray[np.float64]:
    """Return [N, N]: 1 - BLEU of the earlier against the later question; 0 on the diagonal."""
    counts = [_counts(question.split()) for question in questions]
    distances_NN = np.zeros((len(questions), len(questions)))
    for row, hypothesis in enumerate(counts):
        for column in range(row + 1, len(counts)):
            distance = 1 - _bleu(hypothesis, counts[column])
            distances_NN[row, column] = distances_NN[column, row] = distance
    return distances_NN


def bleu(hypothesis: str, reference: str) -> float:
    """Return sentence BLEU of four orders with one reference (Papineni et al. 2002), smoothed."""
    return _bleu(_counts(hypothesis.split()), _counts(reference.split()))


def clusters(distances_NN: NDArray[np.float64], max_distance: float) -> list[int]:
    """Return N labels of agglomerative clustering by average linkage, up to `max_distance`.

    Args:
        distances_NN: [N, N], symmetric.
        max_distance: two clusters at this mean distance, or farther apart, are not merged.
    """
    linkage_NN = distances_NN.astype(float).copy()
    np.fill_diagonal(linkage_NN, np.inf)
    sizes_N = np.ones(len(linkage_NN))
    labels_N = np.arange(len(linkage_NN))
    while linkage_NN.size and linkage_NN.min() < max_distance:
        kept, joined = sorted(divmod(int(linkage_NN.argmin()), len(linkage_NN)))
        total = sizes_N[kept] + sizes_N[joined]
        mean_N = (sizes_N[kept] * linkage_NN[kept] + sizes_N[joined] * linkage_NN[joined]) / total
        linkage_NN[kept], linkage_NN[:, kept] = mean_N, mean_N
        linkage_NN[joined], linkage_NN[:, joined] = np.inf, np.inf
        linkage_NN[kept, kept] = np.inf
        sizes_N[kept] = total
        labels_N[labels_N == joined] = kept
    return labels_N.tolist()


def _counts(words: Sequence[str]) -> Counts:
    """Return the counts of the phrases of one to four words."""
    return tuple(
        Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))
        for order in range(1, _ORDER + 1)
    )


def _bleu(hypothesis: Counts, reference: Counts) -> float:
    length, reference_length = hypothesis[0].total(), reference[0].total()
    matches = [(own & other).total() for own, other in zip(hypothesis, reference, strict=True)]
    if not matches[0]:
        return 0.0
    precisions = [
        (found or _SMOOTHING) / max(1, own.total())
        for found, own in zip(matches, hypothesis, strict=True)
    ]
    brevity = min(0.0, 1 - reference_length / length)
    return math.exp(brevity + sum(map(math.log, precisions)) / _ORDER)

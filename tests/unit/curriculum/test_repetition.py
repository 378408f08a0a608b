"""BLEU and its clusters, by hand and against scipy's average linkage."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from espalier.curriculum.repetition import bleu, cluster_shares, clusters


@pytest.mark.parametrize(
    ("hypothesis", "reference", "score"),
    [
        ("a b c d", "a b c d", 1.0),
        ("a b c d", "e f g h", 0.0),
        # unigrams 4/4, pairs 2/3, triples 0.1/2, quadruples 0.1/1
        ("a b c d", "c d a b", (1 * 2 / 3 * 0.05 * 0.1) ** 0.25),
        # all counts of the short one match; five words for eight are too brief
        ("a b c d e", "a b c d e f g h", math.exp(1 - 8 / 5)),
        # 5/8, 4/7, 3/6, 2/5, and no bonus for being long
        ("a b c d e f g h", "a b c d e", (5 / 8 * 4 / 7 * 3 / 6 * 2 / 5) ** 0.25),
        # a word counts as often as the reference has it: 1/3, then nothing
        ("a a a", "a b c", (1 / 3 * 0.1 / 2 * 0.1 / 1 * 0.1 / 1) ** 0.25),
        ("", "a", 0.0),
    ],
)
def test_bleu_equals_hand_computed_values(hypothesis, reference, score):
    assert bleu(hypothesis, reference) == pytest.approx(score)


def partition(labels):
    groups = {}
    for place, label in enumerate(labels):
        groups.setdefault(label, set()).add(place)
    return sorted(map(sorted, groups.values()))


@given(st.integers(2, 14), st.integers(0, 10_000), st.floats(0.05, 0.95))
def test_clusters_are_those_of_average_linkage(count, seed, max_distance):
    distances = np.triu(np.random.default_rng(seed).random((count, count)), 1)
    distances = distances + distances.T
    tree = linkage(squareform(distances), method="average")
    theirs = partition(fcluster(tree, max_distance, "distance"))
    assert partition(clusters(distances, max_distance)) == theirs
    pair = distances[:2, :2]
    assert clusters(pair, pair[0, 1]) == [0, 1], "at the threshold they stay apart"
    assert clusters(pair[:1, :1], max_distance) == [0]


def test_questions_of_one_template_share_a_cluster():
    questions = [
        "what is the capital of the country of Lyon ?",
        "what is the capital of the country of Nice ?",
        "name every currency that Peru has ever used .",
    ]
    assert cluster_shares(questions, 0.5) == pytest.approx([2 / 3, 2 / 3, 1 / 3])
    assert cluster_shares(questions, 0.0) == pytest.approx([1 / 3] * 3)
    assert cluster_shares([], 0.5) == []

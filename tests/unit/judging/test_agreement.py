import math
import random

import pytest

from espalier.judging import cohen_kappa, expected_kappa, fleiss_kappa

FLEISS_1971 = [
    (0, 0, 0, 0, 14), (0, 2, 6, 4, 2), (0, 0, 3, 5, 6), (0, 3, 9, 2, 0), (2, 2, 8, 1, 1),
    (7, 7, 0, 0, 0), (3, 2, 6, 3, 0), (2, 5, 3, 2, 2), (6, 5, 2, 1, 0), (0, 2, 2, 3, 7),
]  # fmt: skip
"""Ten items, fourteen raters, five categories: the worked example whose kappa is 0.210."""


def test_the_published_example_has_its_kappa():
    assert fleiss_kappa(FLEISS_1971) == pytest.approx(0.210, abs=5e-4)


def test_full_agreement_is_one_and_split_votes_are_below_chance():
    assert fleiss_kappa([(3, 0), (0, 3)]) == 1.0
    assert fleiss_kappa([(2, 2), (2, 2)]) == pytest.approx(-1 / 3)


def test_kappa_is_unknown_where_chance_explains_all():
    assert math.isnan(fleiss_kappa([]))
    assert math.isnan(fleiss_kappa([(3, 0), (3, 0)]))
    assert math.isnan(cohen_kappa([(True, True)]))


def test_two_raters_agree_beyond_their_biases():
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10
    assert cohen_kappa(pairs + [(False, False)] * 15) == pytest.approx(0.4)


@pytest.mark.parametrize(("share_yes", "flip"), [(0.5, 0.0), (0.5, 0.1), (0.3, 0.2), (0.7, 0.5)])
def test_estimated_agreement_is_that_of_judges_with_known_noise(share_yes, flip):
    dice = random.Random(3)
    votes = []
    for _ in range(20_000):
        truth = dice.random() < share_yes
        yes = sum(truth != (dice.random() < flip) for _ in range(3))
        votes.append((3 - yes, yes))
    wanted = expected_kappa(share_yes=share_yes, flip=flip)
    assert fleiss_kappa(votes) == pytest.approx(wanted, abs=0.02)

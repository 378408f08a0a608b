import pytest

from espalier.evaluation import pass_at_k, pass_hat_k


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (4, 1, 1, 0.25),
        (4, 1, 4, 1.0),
        (4, 0, 4, 0.0),
        (4, 2, 2, 1 - 1 / 6),  # C(2, 2) / C(4, 2)
        (5, 2, 3, 1 - 1 / 10),  # C(3, 3) / C(5, 3)
    ],
)
def test_hand_computed_values_of_pass_at_k(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match="right answers"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (4, 3, 1, 0.75),
        (4, 3, 4, 0.0),
        (4, 4, 4, 1.0),
        (4, 3, 2, 0.5),  # C(3, 2) / C(4, 2)
    ],
)
def test_hand_computed_values_of_pass_hat_k(n, c, k, expected):
    assert pass_hat_k(n, c, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 4, 5)])
def test_more_trials_than_there_were_cannot_all_succeed(n, c, k):
    with pytest.raises(ValueError, match="successes"):
        pass_hat_k(n, c, k)

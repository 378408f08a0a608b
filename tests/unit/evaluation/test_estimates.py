import numpy as np
import pytest
from scipy import stats

from espalier.evaluation import mean_interval, paired_difference, pass_at_k, pass_hat_k

SETTINGS = {"resamples": 4000, "confidence": 0.95, "seed": 3}


def test_the_interval_agrees_with_scipy_s_percentile_bootstrap():
    values = np.random.default_rng(0).random(200) < 0.4
    ours = mean_interval(values, **SETTINGS)
    oracle = stats.bootstrap(
        (values.astype(float),), np.mean, n_resamples=4000, method="percentile", rng=1
    ).confidence_interval
    # Two draws of 4,000: each end wanders by about 0.002.
    assert ours.low == pytest.approx(oracle.low, abs=0.01)
    assert ours.high == pytest.approx(oracle.high, abs=0.01)


def test_equal_seeds_give_equal_intervals_and_others_do_not():
    values = np.random.default_rng(0).random(50)
    assert mean_interval(values, **SETTINGS) == mean_interval(values, **SETTINGS)
    assert mean_interval(values, **SETTINGS) != mean_interval(values, **{**SETTINGS, "seed": 4})


def test_drawing_in_pieces_changes_nothing(monkeypatch):
    values = np.random.default_rng(0).random(64)
    whole = mean_interval(values, **SETTINGS)
    monkeypatch.setattr("espalier.evaluation.estimates._DRAWS_AT_ONCE", 1 << 10)
    assert mean_interval(values, **SETTINGS) == whole


def test_pairing_narrows_the_interval_where_questions_differ_in_difficulty():
    hard = np.arange(200) % 2
    constant_gain = paired_difference(hard + 0.5, hard, **SETTINGS)
    assert constant_gain == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("values", [[], [[1.0, 2.0]], [1.0, float("nan")]])
def test_what_has_no_mean_is_refused(values):
    with pytest.raises(ValueError, match="finite"):
        mean_interval(values, **SETTINGS)


def test_pairs_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="lengths"):
        paired_difference([1, 0], [1], **SETTINGS)


def test_resamples_are_those_of_plain_numpy():
    values = np.random.default_rng(0).random(60)
    drawn = np.random.default_rng(3).integers(60, size=(4000, 60))
    low, high = np.quantile(values[drawn].mean(axis=1), [0.025, 0.975])
    assert mean_interval(values, **SETTINGS)[1:] == pytest.approx((low, high), abs=1e-12)


@pytest.mark.parametrize(
    ("rate", "n", "c", "k", "expected"),
    [
        (pass_at_k, 4, 1, 1, 0.25),
        (pass_at_k, 4, 1, 4, 1.0),
        (pass_at_k, 4, 0, 4, 0.0),
        (pass_at_k, 4, 2, 2, 1 - 1 / 6),  # C(2, 2) / C(4, 2)
        (pass_at_k, 5, 2, 3, 1 - 1 / 10),  # C(3, 3) / C(5, 3)
        (pass_hat_k, 4, 3, 1, 0.75),
        (pass_hat_k, 4, 3, 4, 0.0),
        (pass_hat_k, 4, 4, 4, 1.0),
        (pass_hat_k, 4, 3, 2, 0.5),  # C(3, 2) / C(4, 2)
    ],
)
def test_rates_agree_with_values_computed_by_hand(rate, n, c, k, expected):
    assert rate(n, c, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("rate", "n", "c", "k"),
    [
        *(
            (rate, *of)
            for of in [(4, 5, 1), (4, -1, 1), (4, 2, 0)]
            for rate in (pass_at_k, pass_hat_k)
        ),
        (pass_hat_k, 4, 4, 5),
    ],
)
def test_impossible_counts_are_refused(rate, n, c, k):
    with pytest.raises(ValueError, match=r"answers|successes"):
        rate(n, c, k)

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.training.health.detector import Beyond, Drift

FLOOR = 0.1


def drift(direction=1.0, **settings):
    return Drift("it", "it", direction, FLOOR, "a.key", "it drifts", **settings)


def fed(detector, values):
    """(step, finding) of each finding over the values of a figure."""
    rows = [{"step": float(step), "it": value} for step, value in enumerate(values, 1)]
    return [(int(row["step"]), it) for row in rows if (it := detector.observe(row)) is not None]


@given(st.floats(allow_nan=False, width=32), st.integers(1, 60), st.booleans())
def test_a_constant_figure_never_alarms(value, steps, is_log):
    for direction in (1.0, -1.0):
        assert fed(drift(direction, is_log=is_log), [value] * steps) == []


@given(st.lists(st.floats(width=32), max_size=60))
def test_any_numbers_are_taken_without_error(values):
    for is_log in (True, False):
        for step, finding in fed(drift(is_log=is_log), values):
            assert 1 <= finding.since_step <= step


def test_values_that_are_not_finite_count_for_nothing():
    broken = [1.0, math.nan, math.inf] * 20
    assert fed(drift(), broken) == []


@pytest.mark.parametrize(("noise", "most"), [(0.05, 0), (0.1, 1), (0.5, 5), (5.0, 5)])
def test_noise_alarms_no_more_often_than_stated(noise, most):
    """Of 150 runs of 200 steps: 1 % is stated; 5 of 150 would be 3 standard deviations more."""
    alarms = 0
    for seed in range(150):
        rng = random.Random(seed)
        alarms += bool(fed(drift(), [rng.gauss(7.0, noise) for _ in range(200)]))
    assert alarms <= most


def test_a_shift_is_told_once_with_the_step_it_began():
    [(step, finding)] = fed(drift(), [1.0] * 12 + [2.0] * 20)
    assert (step, finding.since_step) == (16, 13)
    assert "it is 2, 1 in the first steps" in finding.message


def test_a_single_outlier_is_no_drift():
    assert fed(drift(), [1.0] * 12 + [50.0] + [1.0] * 20) == []


def test_a_drift_that_comes_back_is_told_again():
    once = [1.0] * 12 + [2.0] * 6
    assert [step for step, _ in fed(drift(), once + [1.0] * 20 + [2.0] * 6)] == [16, 42]


def test_a_slow_drift_is_told_though_no_step_is_large():
    found = fed(drift(), [1.0 + 0.03 * step for step in range(40)])
    assert len(found) == 1


def test_only_the_named_direction_alarms():
    assert fed(drift(-1.0), [1.0] * 12 + [2.0] * 20) == []
    assert len(fed(drift(-1.0), [1.0] * 12 + [0.0] * 20)) == 1


def test_a_step_that_is_excused_adds_nothing():
    assert (
        fed(drift(unless=lambda start, row: row["it"] > start["it"]), [1.0] * 12 + [2.0] * 20) == []
    )


def test_a_bound_is_told_after_its_steps_in_a_row():
    bound = Beyond("it", "it", 0.5, "a.key", "too much", steps=2)
    assert [step for step, _ in fed(bound, [0.0, 1.0, 0.0, 1.0, 1.0, 1.0])] == [5]
    [(step, finding)] = fed(Beyond("it", "it", 0.5, "a.key", "too much"), [0.0, math.nan])
    assert (step, finding.since_step) == (2, 2)

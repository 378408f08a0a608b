"""The judgement of the watches' figures: the benchmark can fail."""

import pytest

from tests.benchmarks.watches import is_well

WELL = {
    "half_open_noticed_s": 46.0,
    "never_answered_noticed_s": 60.0,
    "requests_per_s": {"gone": 0.25, "closes": 1.99},
}


def test_figures_within_their_bounds_are_well():
    assert is_well(WELL)


@pytest.mark.parametrize(
    "changed",
    [
        {"half_open_noticed_s": 60.1},
        {"never_answered_noticed_s": 61.0},
        {"requests_per_s": {"gone": 870.0, "closes": 0.25}},
        {"requests_per_s": {"gone": 0.25, "closes": 2.0}},
    ],
)
def test_a_figure_beyond_its_bound_is_not(changed):
    assert not is_well(WELL | changed)

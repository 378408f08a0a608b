"""What the curriculum filter advises, in each direction."""

import pytest

from espalier.config import Profile
from espalier.curriculum.advice import advice_line

PROFILE = Profile()
WANTED = PROFILE.training.tasks_per_step


@pytest.mark.parametrize(
    ("pass_rates", "said", "unsaid"),
    [
        ([1.0] * 262, ("lower warm_start.steps", "262"), "raise warm_start"),
        ([0.0] * 100, ("raise warm_start.steps", "100"), "lower warm_start"),
        ([1.0] * 50 + [0.0] * 50, ("rollouts_per_task",), "warm_start"),
        ([0.5] * 5, ("too few", f"{WANTED}"), "warm_start"),
        ([0.5] * 10 + [1.0] * 90, ("10 of 100", "too easy"), "raise warm"),
    ],
)
def test_advice_points_to_where_the_tasks_are(pass_rates, said, unsaid):
    line = advice_line(pass_rates, PROFILE)
    assert all(part in line for part in said)
    assert unsaid not in line


def test_enough_learnable_tasks_need_no_advice():
    for pass_rates in ([], [0.5] * WANTED, [0.5] * WANTED + [1.0] * 500):
        assert not advice_line(pass_rates, PROFILE)
    for draw in ("uniform", "patterns", "predicted", "frontier"):  # from all tasks, without a band
        profile = Profile.model_validate({"curriculum": {"draw": draw}})
        assert not advice_line([1.0] * 10, profile)

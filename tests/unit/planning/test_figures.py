import pytest

from espalier.config import Profile
from espalier.planning.figures import Compute, assumed, calibrated, median, rescaled

REGENERATE = {"name": "zero_variance", "action": "regenerate", "max_regenerations": 1}


def test_a_median_leaves_out_runs_without_the_figure():
    found = median([{"ingest_s": 1.0, "data_mib": 9.0}, {"ingest_s": 3.0}, {"ingest_s": 20.0}])
    assert found == {"ingest_s": 3.0, "data_mib": 9.0}


def test_later_layers_take_the_place_of_earlier_ones():
    made = calibrated(
        Profile(),
        [("others", {"ingest_s": 9.0, "policy_mib": 2.0}), ("own", {"ingest_s": 1.0})],
        Compute(750_000, 1),
    )
    assert (made.figures.ingest_s, made.figures.policy_mib) == (1.0, 2.0)
    assert (made.sources["ingest_s"], made.sources["policy_mib"]) == ("own", "others")
    assert "judged_token_s" in made.assumed
    assert "ingest_s" not in made.assumed


def test_assumed_times_are_those_of_the_policy_and_the_threads():
    small = calibrated(Profile(), [], Compute(750_000, 1)).figures
    large = calibrated(Profile(), [], Compute(7_500_000, 2)).figures
    assert large.update_token_s == pytest.approx(small.update_token_s * 10**0.87 * 2**-0.68)
    assert large.ingest_s == small.ingest_s


@pytest.mark.parametrize(
    ("made", "asked", "factor"),
    [
        (Compute(1000, 1), Compute(1000, 1), 1.0),
        (Compute(1000, 1), Compute(4000, 1), 4.0**0.87),
        (Compute(1000, 1), Compute(10, 1), 1 / 3),
        (Compute(1000, 1), Compute(1000, 2), 2**-0.68),
    ],
)
def test_time_by_the_token_follows_parameters_and_threads(made, asked, factor):
    found = rescaled({"sft_token_s": 1.0, "data_mib": 500.0}, made, asked)
    assert found == {"sft_token_s": pytest.approx(factor), "data_mib": 500.0}


@pytest.mark.parametrize(
    ("screened", "group_size", "algorithm", "expected"),
    [
        (0, 16, {"filters": []}, 1.0),
        (4, 16, {"filters": []}, 1.48),
        (2, 8, {"filters": []}, 2.08),
        (0, 8, {"filters": [REGENERATE]}, 2.0),  # once at most
        (0, 1, {"preset": "reinforce_pp"}, 1.0),
    ],
)
def test_groups_that_are_drawn_anew_cost_more(screened, group_size, algorithm, expected):
    asked = Profile.model_validate(
        {
            "curriculum": {"screening_rollouts": screened},
            "training": {"group_size": group_size, "algorithm": algorithm},
        }
    )
    assert assumed(asked)["rollouts_per_place"] == pytest.approx(expected, abs=0.01)

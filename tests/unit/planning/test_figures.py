import pytest

from espalier.config import Profile
from espalier.planning.figures import assumed, calibrated

REGENERATE = {"name": "zero_variance", "action": "regenerate", "max_regenerations": 1}


def test_what_a_probe_measured_takes_the_place_of_assumptions():
    made = calibrated(Profile(), 750_000, {"ingest_s": 1.0})
    assert made.figures.ingest_s == 1.0
    assert (made.sources["ingest_s"], made.sources["policy_mib"]) == ("probe", "assumed")
    assert "judged_token_s" in made.assumed
    assert "ingest_s" not in made.assumed


def test_assumed_times_are_those_of_the_policy_and_the_threads():
    small = calibrated(Profile(threads=1), 750_000, {}).figures
    large = calibrated(Profile(threads=2), 7_500_000, {}).figures
    assert large.update_token_s == pytest.approx(small.update_token_s * 10**0.87 * 2**-0.68)
    assert large.ingest_s == small.ingest_s


@pytest.mark.parametrize(
    ("parameters", "threads", "factor"),
    [
        (750_000, 1, 1.0),
        (3_000_000, 1, 4.0**0.87),
        (7_500, 1, 1 / 3),
        (750_000, 2, 2**-0.68),
    ],
)
def test_time_by_the_token_follows_parameters_and_threads(parameters, threads, factor):
    asked = Profile(threads=threads)
    found = calibrated(asked, parameters, {}).figures
    assert found.sft_token_s == pytest.approx(factor * assumed(asked)["sft_token_s"])
    assert found.data_mib == assumed(asked)["data_mib"]


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

import pytest

from espalier.config import Profile
from espalier.planning.figures import assumed, calibrated

REGENERATE = {"name": "zero_variance", "action": "regenerate", "max_regenerations": 1}


def test_what_a_probe_measured_takes_the_place_of_assumptions():
    made = calibrated(Profile(), 750_000, {"ingest_s": 1.0})
    assert made.figures.ingest_s == 1.0
    assert (made.sources["ingest_s"], made.sources["policy_mib"]) == ("probe", "assumed")
    assert "judged_token_s" in made.assumed


@pytest.mark.parametrize(
    ("screened", "group_size", "algorithm", "expected"),
    [
        (0, 16, {"filters": []}, 1.0),
        (4, 16, {"filters": []}, 1.48),
        (0, 8, {"filters": [REGENERATE]}, 2.0),  # once at most
    ],
)
def test_groups_that_are_drawn_anew_cost_more(screened, group_size, algorithm, expected):
    training = {"group_size": group_size, "algorithm": algorithm}
    asked = {"curriculum": {"screening_rollouts": screened}, "training": training}
    found = assumed(Profile.model_validate(asked))["rollouts_per_place"]
    assert found == pytest.approx(expected, abs=0.01)

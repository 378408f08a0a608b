"""The environment is chosen by its name, and its settings agree with the rest of the profile."""

import pytest

from espalier.chain import STAGES
from espalier.config import EnvironmentConfig, Profile
from espalier.environments import SimpleFamily
from espalier.records import ProfileError

MATH = 'environment.name="python_math"'


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (['environment.name="python_maths"'], "mean python_math"),
        (['environment.name="nowhere:Family"'], "nowhere:Family"),
        (['environment.name="espalier.config:Profile"'], "Profile"),
        (["environment.session=stateful"], r"environment\.session"),
        ([MATH, "environment.sesion=stateful"], r"mean environment\.session"),
        ([MATH, "environment.sandbox.backend=podman"], r"environment\.sandbox\.image"),
        ([MATH, "environment.sandbox.backend=podmn"], "mean podman"),
        ([MATH, "environment.heldout_problems=a"], r"environment\.problems"),
        ([MATH, "agent_texts.negatives=3"], "agent_texts"),
        ([MATH, "synthesis.chain_weights=[0.0, 0.0, 0.0, 0.0]"], "chain_weights"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(load, overrides, complaint):
    with pytest.raises(ProfileError, match=complaint):
        load(*overrides)


def test_problem_files_count_by_their_content(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text("a")
    profile = Profile.model_validate(
        {"environment": {"name": "python_math", "problems": str(path)}}
    )
    before = STAGES["ingest"].external_inputs(profile)
    path.write_text("b")
    assert before.keys() == {"environment.problems"}
    assert STAGES["ingest"].external_inputs(profile) != before


class PricesConfig(EnvironmentConfig):
    currency: str = "EUR"


class Prices(SimpleFamily[PricesConfig]):
    """A family outside the library: what a profile reads of it is its class."""

    name = "prices"
    config = PricesConfig

    @classmethod
    def check(cls, profile):
        if profile.episode.max_turns < 2:
            raise ValueError("episode.max_turns leaves no turn to convert in")


OWN = f'environment.name="{__name__}:Prices"'


def test_an_own_family_is_named_by_place_and_checks(load):
    profile = load(OWN, "environment.currency=CHF")
    assert profile.environment == PricesConfig(name=f"{__name__}:Prices", currency="CHF")
    assert Profile.model_validate_json(profile.model_dump_json()) == profile
    with pytest.raises(ProfileError, match="turn"):
        load(OWN, "episode.max_turns=1")

"""The environment is chosen by its name, and its settings agree with the rest of the profile."""

import pytest

from espalier.chain import STAGES
from espalier.config import (
    EnvironmentConfig,
    LocalSandboxConfig,
    PodmanSandboxConfig,
    Profile,
)
from espalier.environments import SimpleFamily
from espalier.records import ProfileError
from espalier_environments.python_math.config import PythonMathConfig
from espalier_search.search_qa.family import SearchQAConfig

MATH = 'environment.name="python_math"'


def test_question_answering_is_the_environment_unless_another_is_named(load):
    assert load().environment == SearchQAConfig()
    assert isinstance(load(MATH).environment, PythonMathConfig)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (['environment.name="python_maths"'], "mean python_math"),
        (['environment.name="nowhere:Family"'], "nowhere:Family"),
        (['environment.name="espalier.config:Profile"'], "Profile"),
        (["environment.session=stateful"], r"environment\.session"),
        ([MATH, "environment.code_timeout_s=0"], r"environment\.code_timeout_s"),
        ([MATH, "environment.sesion=stateful"], r"mean environment\.session"),
        ([MATH, "environment.sandbox.image=a:1"], r"environment\.sandbox\.image"),
        ([MATH, "environment.sandbox.backend=podman"], r"environment\.sandbox\.image"),
        (
            [MATH, "environment.sandbox.backend=podmn"],
            "mean podman",
        ),
        ([MATH, "environment.heldout_problems=a"], r"environment\.problems"),
        ([MATH, "agent_texts.negatives=3"], "agent_texts"),
        ([MATH, "synthesis.chain_weights=[0.0, 0.0, 0.0, 0.0]"], "chain_weights"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(load, overrides, complaint):
    with pytest.raises(ProfileError, match=complaint):
        load(*overrides)


def test_the_environment_is_part_of_what_every_stage_computes():
    plain = Profile()
    other = Profile.model_validate({"environment": {"name": "python_math"}})
    changed = {s for s in STAGES if STAGES[s].digest(plain) != STAGES[s].digest(other)}
    assert changed == STAGES.keys()  # the model is named after it


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


def test_a_sandbox_is_local_unless_a_backend_is_named(load):
    assert load(MATH, "environment.sandbox.size=2").environment.sandbox == LocalSandboxConfig(
        size=2
    )
    named = ["environment.sandbox.backend=podman", "environment.sandbox.image=a:1"]
    assert load(MATH, *named).environment.sandbox == PodmanSandboxConfig(image="a:1")


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


def test_an_own_family_is_named_by_its_place(load):
    profile = load(OWN, "environment.currency=CHF")
    assert profile.environment == PricesConfig(name=f"{__name__}:Prices", currency="CHF")
    assert Profile.model_validate_json(profile.model_dump_json()) == profile


def test_a_family_refuses_sections_that_do_not_fit_it(load):
    with pytest.raises(ProfileError, match="turn"):
        load(OWN, "episode.max_turns=1")

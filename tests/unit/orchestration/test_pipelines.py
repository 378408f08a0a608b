import pytest
import yaml

from espalier.config import KubernetesConfig, Profile
from espalier.orchestration.pipelines import compile_pipeline, form_defaults
from espalier.records import ProfileError
from espalier.steps.profiles import FORM_KEYS, named_profile, profile_names, resolved_profile


def test_a_built_in_profile_stays_a_name_in_the_form():
    assert form_defaults("smoke", ["training.steps=3", "seed=5"]) == {
        "profile": "smoke",
        "seed": 5,
        "overrides": "training.steps=3; seed=5",
    }


def test_a_profile_without_changes_leaves_every_other_field_empty():
    assert form_defaults("smoke", []) == {"profile": "smoke", "seed": 0}


def test_a_seed_that_a_double_would_round_is_refused():
    with pytest.raises(ProfileError, match="seed"):
        form_defaults("smoke", [f"seed={1 << 53}"])


def test_a_profile_of_the_users_own_travels_whole(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('name = "own"\nseed = 3\n')
    defaults = form_defaults(str(path), ["training.steps=7"])
    assert resolved_profile(defaults["profile"], seed=3, overrides="") == named_profile(
        str(path), ["training.steps=7"]
    )


def test_form_and_command_line_resolve_to_the_same_profile():
    defaults = form_defaults("smoke", ["training.steps=3", "synthesis.chain_weights=[1,0,0,0]"])
    resolved = resolved_profile(
        defaults["profile"], seed=defaults["seed"], overrides=defaults["overrides"]
    )
    assert resolved == named_profile(
        "smoke", ["training.steps=3", "synthesis.chain_weights=[1,0,0,0]"]
    )
    assert isinstance(resolved, Profile)


@pytest.fixture(scope="module")
def fields(tmp_path_factory):
    out = tmp_path_factory.mktemp("compiled") / "deeper" / "smoke.yaml"
    compile_pipeline(out, form_defaults("smoke", []), KubernetesConfig(), None)
    text = out.read_text()
    assert "#    seed: int [Default: 0]\n" in text
    return next(yaml.safe_load_all(text))["root"]["inputDefinitions"]["parameters"]


@pytest.mark.slow
def test_compiled_defaults_are_those_asked_for(fields):
    defaults = {name: field["defaultValue"] for name, field in fields.items()}
    assert {name: value for name, value in defaults.items() if value != ""} == {
        "profile": "smoke",
        "seed": 0,
    }
    assert type(fields["seed"]["defaultValue"]) is int


@pytest.mark.slow
def test_the_form_names_the_profiles_that_there_are(fields):
    *others, last = profile_names()
    assert f"({', '.join(others)} or {last})" in fields["profile"]["description"]


@pytest.mark.slow
def test_a_form_that_nobody_filled_in_can_be_started(fields):
    """Kubeflow's pages ask for every field without a default, also for optional ones."""
    assert all("defaultValue" in field for field in fields.values())
    kinds = {name: field["parameterType"] for name, field in fields.items()}
    assert kinds.pop("seed") == "NUMBER_INTEGER"
    assert set(kinds.values()) == {"STRING"}, "a number has no empty value"


@pytest.mark.slow
def test_each_field_names_its_key(fields):
    assert set(fields) == {"profile", "seed", "overrides", *FORM_KEYS}
    for name, key in FORM_KEYS.items():
        assert f"({key})" in fields[name]["description"]
        assert fields[name]["isOptional"]

import pytest
import yaml

from espalier.config import KubernetesConfig, Profile
from espalier.orchestration.pipelines import compile_pipeline, form_defaults
from espalier.steps.profiles import named_profile, resolved_profile


def test_a_profile_of_the_image_stays_a_name_in_the_form():
    assert form_defaults("smoke", ["training.steps=3", "seed=5"]) == {
        "profile": "smoke",
        "seed": 5,
        "overrides": "training.steps=3; seed=5",
    }


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


@pytest.mark.slow
def test_compiled_defaults_are_those_asked_for(tmp_path):
    out = tmp_path / "deeper" / "smoke.yaml"
    compile_pipeline(out, form_defaults("smoke", []), KubernetesConfig(), None)
    fields = next(yaml.safe_load_all(out.read_text()))["root"]["inputDefinitions"]["parameters"]
    assert fields["profile"]["defaultValue"] == "smoke"
    assert fields["profile"]["description"].startswith("Name of a run profile")

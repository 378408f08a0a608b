import json

import pytest
import yaml

from espalier.chain import CHAIN
from espalier.config import KubernetesConfig
from espalier.orchestration.pipelines import compile_pipeline, form_defaults
from espalier.records import ProfileError
from espalier.steps.components import launching_component, stage_component
from espalier.steps.profiles import FORM_KEYS, named_profile, profile_names, resolved_profile


def test_a_built_in_profile_stays_a_name_in_the_form():
    assert form_defaults("smoke", []) == {"profile": "smoke", "seed": 0}
    overrides = "training.steps=3; seed=5"
    expected = {"profile": "smoke", "seed": 5, "overrides": overrides}
    assert form_defaults("smoke", overrides.split("; ")) == expected
    with pytest.raises(ProfileError, match="seed"):  # a double would round it
        form_defaults("smoke", [f"seed={1 << 53}"])


def test_servers_that_could_not_see_the_weights_are_refused():
    servers = ['rollout.engine="vllm"', 'rollout.vllm.urls=["http://rollout:8000"]']
    claim = 'kubernetes.workspace_claim="espalier-workspace"'
    shared, elsewhere = (f'rollout.vllm.shared_dir="{path}"' for path in ("/workspace", "/tmp"))
    for given in ([], [claim], [shared], [claim, elsewhere]):
        with pytest.raises(ProfileError, match="shared_dir"):
            form_defaults("smoke", [*servers, *given])
    assert form_defaults("smoke", [*servers, claim, shared])


@pytest.mark.parametrize("name", ["smoke", "own"])
def test_form_and_command_line_resolve_to_the_same_profile(tmp_path, name):
    path = tmp_path / "own.toml"
    path.write_text('name = "own"\nseed = 3\n')
    given = name if name == "smoke" else str(path)
    changes = ["training.steps=3", "synthesis.chain_weights=[1,0,0,0]"]
    form = form_defaults(given, changes)
    resolved = resolved_profile(
        form["profile"], seed=form["seed"], overrides=form.get("overrides", "")
    )
    assert resolved == named_profile(given, changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "value", ["a; b", "a\nb", "a\r\nb", "a;\n;b", "a # b: 'c'", 'a" {b}', "a\u2028b\x85;"]
)
def test_a_value_keeps_what_the_form_would_split_it_at(tmp_path, value):
    change = f"registry.experiment={json.dumps(value)}"
    out = tmp_path / "pipeline.yaml"
    compile_pipeline(out, form_defaults("laptop", [change]), KubernetesConfig(), None)
    fields = next(yaml.safe_load_all(out.read_text()))["root"]["inputDefinitions"]["parameters"]
    form = {name: field["defaultValue"] for name, field in fields.items()}
    profile, seed, overrides = (form.pop(name) for name in ("profile", "seed", "overrides"))
    resolved = resolved_profile(profile, seed=seed, overrides=overrides, form=form)
    assert resolved.registry.experiment == value


@pytest.mark.parametrize("stage", CHAIN, ids=lambda stage: stage.name)
def test_components_have_the_artifacts_of_the_chain(stage):
    spec = stage_component(stage.name).component_spec
    beside = {stage.shows} if stage.shows else set()
    judged = {"verdict"} if stage.judges else set()
    assert set(spec.inputs) == {"profile_json", *stage.inputs}
    assert set(spec.outputs) == {stage.output} | beside | judged
    assert spec.description == stage.summary
    launched = launching_component(stage.name).component_spec
    assert launched.inputs == spec.inputs
    assert launched.outputs == {stage.output: spec.outputs[stage.output]}


@pytest.mark.slow
def test_a_form_that_nobody_filled_in_can_be_started(tmp_path):
    """Kubeflow's pages ask for every field without a default, also for optional ones."""
    out = tmp_path / "deeper" / "smoke.yaml"
    compile_pipeline(out, form_defaults("smoke", []), KubernetesConfig(), None)
    pipeline = next(yaml.safe_load_all(out.read_text()))
    fields = pipeline["root"]["inputDefinitions"]["parameters"]
    defaults = {name: field["defaultValue"] for name, field in fields.items()}
    assert {k: v for k, v in defaults.items() if v != ""} == {"profile": "smoke", "seed": 0}
    assert type(defaults["seed"]) is int
    kinds = {name: field["parameterType"] for name, field in fields.items()}
    assert kinds.pop("seed") == "NUMBER_INTEGER"
    assert set(kinds.values()) == {"STRING"}, "a number has no empty value"
    assert all(name in fields["profile"]["description"] for name in profile_names())
    assert set(fields) == {"profile", "seed", "overrides", *FORM_KEYS}
    for name, key in FORM_KEYS.items():
        assert f"({key})" in fields[name]["description"]
        assert fields[name]["isOptional"]

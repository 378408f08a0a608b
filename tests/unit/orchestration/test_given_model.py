import json
from pathlib import Path

import pytest

from espalier.chain import STAGES
from espalier.config import NAMED_MODELS, PolicyConfig, Profile, open_named_model
from espalier.dialects import rendering
from espalier.orchestration.pipelines import form_defaults
from espalier.policy.loading import load_policy, save_policy
from espalier.records import PolicyError, ProfileError, read_manifest
from espalier.steps.given_model import (
    MemoryBudget,
    bring_named_model,
    check_given_model,
    machine_memory,
    memory_fault,
    push_named_model,
)
from espalier.steps.profiles import resolved_profile
from espalier.steps.running import run_stage
from tests.factories.named_models import added_model
from tests.factories.records import make_task
from tests.factories.storage import artifact
from tests.factories.tiny import tiny_policy

GIB = 2**30


@pytest.fixture
def model(tmp_path):
    directory = tmp_path / "model"
    save_policy(tiny_policy(), directory)
    return directory


def check(model):
    said = []
    check_given_model(Profile(policy=PolicyConfig(model=model)), said.append)
    return said


def test_a_sound_model_is_passed_without_a_word(model, tmp_path, monkeypatch):
    assert check(model) == []
    added_model(monkeypatch, tmp_path)
    assert check(Path("small")) == []


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("Qwen/Qwen3-0.6B", "hf download Qwen/Qwen3-0.6B"),
        ("/absent/model", "/absent/model"),
        ("smollm2", "models add smollm2"),  # never fetched by a run
        ("smolm", "smollm2"),
    ],
)
def test_a_model_that_is_not_there_has_its_remedy(tmp_path, monkeypatch, model, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ESPALIER_MODELS", str(tmp_path))
    with pytest.raises(PolicyError, match=said):
        check(Path(model))


def with_template(model, sign):
    path = model / "chat_template.jinja"
    path.write_text(
        "{# " + sign + " #}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    )


@pytest.mark.parametrize(
    ("sign", "family", "taught"),
    [
        ("<start_of_turn>", "Gemma", "tags"),
        ("<\uff5ctool▁calls▁begin\uff5c>", "DeepSeek", "tags"),
        ("<|START_ACTION|>", "Cohere", "tags"),
        ("<|channel|>", "gpt-oss", "tags"),
        ("<tool_call>name<arg_key>", "GLM", "hermes"),
    ],
)
def test_a_foreign_call_format_is_warned_of(model, sign, family, taught):
    with_template(model, sign)
    (line,) = check(model)
    assert line.startswith(f"warning: policy.model = {model}: ")
    assert f"the call format of {family} is not supported" in line
    assert f'"{taught}" is taught instead' in line
    said = []
    policy = PolicyConfig(model=model, dialect="react")
    check_given_model(Profile(policy=policy), said.append)
    assert said == [], "the user has chosen"


def test_an_unknown_call_format_is_warned_of(model):
    with_template(model, "<|tool_call_start|>[f()]<|tool_call_end|>")
    (line,) = check(model)
    assert "its chat template writes calls in a form that is not read here" in line
    assert '"tags" is taught instead' in line


LOOP = "{% for _ in range(99999) %}"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (LOOP * 4 + "{% endfor %}" * 4, "does not end within 0.3 s"),
        ("{% if tools %}" + LOOP * 4 + "{% endfor %}" * 4 + "{% endif %}", "does not end within"),
        ("{% include 'other.jinja' %}", "stands alone"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_refused(model, monkeypatch, template, said):
    monkeypatch.setattr(rendering, "WITHIN_S", 0.3)
    with_template(model, "<tool_call>")
    path = model / "chat_template.jinja"
    path.write_text(path.read_text() + template)
    with pytest.raises(PolicyError, match=said):
        check(model)


def without_chat_template(model):
    (model / "chat_template.jinja").unlink()


def that_generates_no_text(model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "vit"}))


def without_its_shards(model):
    (model / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def without_weights(model):
    (model / "model.safetensors").unlink()


def cut_short(model):
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (without_chat_template, "chat template"),
        (that_generates_no_text, "'vit'"),
        (without_its_shards, "model-1-of-2"),
        (without_weights, "no weights"),
        (cut_short, r"model\.safetensors"),
    ],
)
def test_an_unfit_model_is_refused(model, harm, named):
    harm(model)
    with pytest.raises(PolicyError, match=named):
        check(model)


def test_what_may_not_fit_is_warned_of_or_refused(tmp_path):
    def fault(free_gib, processes, parameters=10**9):
        memory = MemoryBudget("this machine", 24 * GIB, free_gib * GIB)
        return memory_fault(tmp_path, parameters, memory, processes=processes)

    assert fault(20, 1) is fault(10, 2) is None
    assert "14.9 GiB" in fault(10, 1)
    with pytest.raises(PolicyError, match=r"119\.2 GiB .*24\.0 GiB"):
        fault(1, 1, 8 * 10**9)


def test_a_container_has_the_memory_that_it_may_use(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8192 kB\nMemAvailable: 4096 kB\n")
    assert machine_memory(tmp_path) == ("this machine", 8 << 20, 4 << 20)
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{4 << 20}\n")
    (group / "memory.current").write_text(f"{1 << 20}\n")
    assert machine_memory(tmp_path) == ("this machine", 4 << 20, 3 << 20)


def test_pods_get_a_named_model_by_its_digest_or_path(tmp_path, monkeypatch):
    reference = added_model(monkeypatch, tmp_path / "here")
    for model in ("small", str(reference)):
        form = form_defaults("laptop", [f"policy.model={model}"])
        assert form["base_model"] == str(reference)
    monkeypatch.setenv("ESPALIER_MODELS", str(tmp_path / "nothing"))
    own = tmp_path / "own.toml"
    own.write_text('name = "own"\n[policy]\nmodel = "smollm2"\n')
    known = f"smollm2@{NAMED_MODELS['smollm2'].content}"
    for form in (form_defaults(str(own), []), form_defaults("laptop", [])):
        assert "base_model" not in form, "another profile would get this one's model"
        resolved = resolved_profile(str(form["profile"]), seed=0, overrides="")
        assert str(resolved.policy.model) == known
    assert resolved_profile("tiny", seed=0, overrides="").policy.model is None
    chosen = resolved_profile("laptop", seed=0, overrides="", form={"base_model": "/models/own"})
    assert str(chosen.policy.model) == "/models/own"
    assert form_defaults("laptop", ["policy.model=/models/own"])["profile"] == "laptop"
    with pytest.raises(ProfileError, match="absolute"):
        form_defaults("laptop", ["policy.model=models/own"])


def brought(model, artifacts):
    """What is said where a pod fetches a model."""
    said = []
    profile = Profile(policy=PolicyConfig(model=Path(str(model))))
    environment = {"ESPALIER_ARTIFACTS": str(artifacts)} if artifacts else {}
    bring_named_model(profile, environment, said.append)
    return said


def test_a_pod_fetches_what_was_pushed_once(tmp_path, monkeypatch):
    reference, artifacts = added_model(monkeypatch, tmp_path / "here"), tmp_path / "artifacts"
    made = open_named_model(reference)
    place = push_named_model(reference, str(artifacts), {})
    assert place == f"{artifacts}/models/small-{reference.digest}"
    before = Path(place).stat().st_ctime_ns
    push_named_model(reference, str(artifacts), {})
    assert Path(place).stat().st_ctime_ns == before, "what is there is left"
    (Path(place) / "model.safetensors").unlink()
    push_named_model(reference, str(artifacts), {})
    monkeypatch.setenv("ESPALIER_MODELS", str(tmp_path / "pod"))
    with pytest.raises(PolicyError, match=r"models push small --to .*other"):
        brought(reference, tmp_path / "other")
    for model, place_of_all in (("small", artifacts), (reference, None)):
        with pytest.raises(PolicyError, match="small"):
            brought(model, place_of_all)
    assert brought(reference, artifacts) == [f"fetches {place}"]
    assert brought(reference, artifacts) == []
    assert open_named_model(reference) == made
    assert reference.directory.parent == tmp_path / "pod"


def test_a_step_starts_from_the_named_model_in_the_bucket(tmp_path, monkeypatch):
    reference = added_model(monkeypatch, tmp_path / "here")
    content = open_named_model(reference).content
    push_named_model(reference, str(tmp_path / "artifacts"), {})
    monkeypatch.setenv("ESPALIER_MODELS", str(tmp_path / "pod"))
    monkeypatch.setenv("ESPALIER_ARTIFACTS", str(tmp_path / "artifacts"))
    inputs = {name: str(tmp_path / name) for name in STAGES["prepare_policy"].inputs}
    for path in inputs.values():
        task = make_task("train-1", "Where is Lyon?").model_dump_json()
        artifact(Path(path), {"tasks/train.jsonl": f"{task}\n".encode()})
    profile = Profile(policy=PolicyConfig(model=Path(str(reference))))
    output = tmp_path / "base_policy"
    run_stage("prepare_policy", profile.model_dump_json(), inputs, str(output), {})
    assert read_manifest(output).inputs["policy.model"] == content
    said = json.loads((output / "run.json").read_bytes())
    assert (said["dialect"], said["first_task"]) == ("tags", "train-1")
    assert "where is lyon?" in said["first_prompt"]
    assert (
        load_policy(output / "policy").model.num_parameters()
        == read_manifest(output).rows["parameters"]
    )

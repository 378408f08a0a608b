import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from espalier.config import HardwareConfig
from espalier.policy.loading import load_policy, load_policy_for_sampling, save_policy
from espalier.records import PolicyError
from tests.factories.tiny import tiny_policy


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("policy")
    save_policy(tiny_policy(seed=3), directory)
    return directory


def test_plain_transformers_gives_the_same_logits_bit_for_bit(saved):
    ids = torch.randint(20, 300, (2, 17), generator=torch.Generator().manual_seed(0))
    plain = AutoModelForCausalLM.from_pretrained(saved, local_files_only=True).eval()
    with torch.no_grad():
        assert torch.equal(plain(ids).logits, tiny_policy(seed=3).model(ids).logits)


def test_plain_transformers_gives_the_same_tokens(saved):
    plain = AutoTokenizer.from_pretrained(saved, local_files_only=True)
    text = "<think> country </think> <search> lyon country </search>"
    assert plain.encode(text) == tiny_policy().tokenizer.encode(text)
    assert plain.chat_template == tiny_policy().tokenizer.chat_template


def test_a_policy_directory_carries_no_code_of_its_own(saved):
    assert "auto_map" not in json.loads((saved / "config.json").read_text())
    assert not list(saved.glob("*.py"))


def test_plain_generation_stops_at_a_closing_tag(saved):
    policy = load_policy(saved)
    stops = policy.tokenizer.convert_tokens_to_ids(["</search>", "</answer>"])
    assert policy.model.generation_config.eos_token_id == stops


def test_what_was_saved_is_what_is_loaded(saved):
    loaded = load_policy(saved).model.state_dict()
    for name, tensor in tiny_policy(seed=3).model.state_dict().items():
        assert torch.equal(loaded[name], tensor)
        assert loaded[name].dtype == torch.float32


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_without_a_gpu_a_policy_samples_on_the_cpu(device, saved, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = load_policy_for_sampling(saved, HardwareConfig(device=device)).model
    assert {weight.device.type for weight in model.parameters()} == {"cpu"}


def test_the_seed_decides_the_first_weights():
    one, same, other = (tiny_policy(seed=seed).model.lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_folder_that_is_no_policy_is_named(tmp_path):
    with pytest.raises(PolicyError, match=r"config\.json"):
        load_policy(tmp_path)


@pytest.mark.parametrize("config", ['{"model_type": "t5"}', '{"model_type": "none"}', "{"])
def test_a_model_that_is_no_causal_lm_is_refused(saved, tmp_path, config):
    save_policy(tiny_policy(), tmp_path)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(PolicyError, match="causal LM"):
        load_policy(tmp_path)


def test_missing_weights_are_an_error_of_the_policy(tmp_path):
    save_policy(tiny_policy(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match=r"model\.safetensors"):
        load_policy(tmp_path)


NORM = "model.embedding_norm.weight"


def without_norm(tensors):
    return {name: tensor for name, tensor in tensors.items() if name != NORM}


def with_shorter_norm(tensors):
    return {**tensors, NORM: tensors[NORM][:-1].clone()}


def with_adapter(tensors):
    return {**tensors, "model.layers.0.lora_A.weight": torch.zeros(2, 2)}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without_norm, f"missing: {NORM}"),
        (with_shorter_norm, rf"{NORM} is \[31\]"),
        (with_adapter, r"model\.layers\.0\.lora_A\.weight"),
    ],
)
def test_weights_that_do_not_fit_the_config_are_named(tmp_path, damage, said):
    save_policy(tiny_policy(), tmp_path)
    weights = tmp_path / "model.safetensors"
    save_file(damage(load_file(weights)), weights, metadata={"format": "pt"})
    with pytest.raises(PolicyError, match=said):
        load_policy(tmp_path)


def test_tied_output_weights_may_be_absent(tmp_path):
    policy = tiny_policy()
    assert policy.model.config.tie_word_embeddings
    save_policy(policy, tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    head = load_policy(tmp_path).model.lm_head.weight
    assert torch.equal(head, policy.model.lm_head.weight)

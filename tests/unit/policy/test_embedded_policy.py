import json
import re

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
        expected = tiny_policy(seed=3).model(ids).logits
        assert torch.equal(plain(ids).logits, expected)
        assert not torch.equal(tiny_policy(seed=2).model(ids).logits, expected)
    tokenizer = AutoTokenizer.from_pretrained(saved, local_files_only=True)
    text = "<think> country </think> <search> lyon country </search>"
    assert tokenizer.encode(text) == tiny_policy().tokenizer.encode(text)
    assert tokenizer.chat_template == tiny_policy().tokenizer.chat_template
    loaded = load_policy(saved).model
    for name, tensor in tiny_policy(seed=3).model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    stops = tokenizer.convert_tokens_to_ids(["</search>", "</answer>"])
    assert loaded.generation_config.eos_token_id == stops
    assert "auto_map" not in json.loads((saved / "config.json").read_text())
    assert not list(saved.glob("*.py")), "it carries no code of its own"


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_without_a_gpu_a_policy_samples_on_the_cpu(device, saved, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = load_policy_for_sampling(saved, HardwareConfig(device=device)).model
    assert {weight.device.type for weight in model.parameters()} == {"cpu"}


@pytest.mark.parametrize("config", ['{"model_type": "t5"}', '{"model_type": "none"}', "{"])
def test_a_model_that_is_no_causal_lm_is_refused(tmp_path, config):
    save_policy(tiny_policy(), tmp_path)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(PolicyError, match="causal LM"):
        load_policy(tmp_path)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_file_that_is_missing_is_named(tmp_path, missing):
    save_policy(tiny_policy(), tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(PolicyError, match=re.escape(missing)):
        load_policy(tmp_path)


NORM = "model.embedding_norm.weight"


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (NORM, lambda tensor: None, f"missing: {NORM}"),
        (NORM, lambda tensor: tensor[:-1].clone(), rf"{NORM} is \[31\]"),
        ("model.layers.0.lora_A.weight", lambda _: torch.zeros(2, 2), r"lora_A\.weight"),
    ],
)
def test_weights_that_do_not_fit_the_config_are_named(tmp_path, name, change, said):
    save_policy(tiny_policy(), tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    assert "lm_head.weight" not in tensors, "tied output weights may be absent"
    changed = change(tensors.pop(name, None))
    if changed is not None:
        tensors[name] = changed
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(PolicyError, match=said):
        load_policy(tmp_path)

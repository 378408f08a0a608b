import json

import pytest

from espalier.config import PolicyConfig
from espalier.config.named_models import MODELS_VARIABLE
from espalier.dialects import SYNTAXES
from espalier.planning.sizes import policy_size
from espalier.policy.embedded import build_policy
from espalier.policy.loading import save_policy
from espalier.records import PolicyError
from tests.factories.tiny import TOOLS, tiny_policy, tiny_tokenizer


@pytest.mark.parametrize(
    "layers", [("conv", "attention", "conv"), ("attention", "attention"), ("conv",)]
)
def test_the_embedded_policy_is_counted_to_the_last_number(layers):
    tokenizer = tiny_tokenizer()
    config = PolicyConfig(
        vocab_size=len(tokenizer), hidden_size=32, attention_heads=2, layers=layers,
        feed_forward_size=48,
    )  # fmt: skip
    stops = SYNTAXES["tags"].stop_texts(TOOLS)
    model = build_policy(config, tokenizer, stops, max_tokens=64, seed=0)
    assert policy_size(config).parameters == model.num_parameters()


def test_a_given_model_has_the_size_of_its_files(tmp_path):
    policy = tiny_policy()
    save_policy(policy, tmp_path)
    size = policy_size(PolicyConfig(model=tmp_path))
    assert size.parameters == policy.model.num_parameters()
    assert (size.attention_layers, size.other_layers) == (1, 2)
    assert (size.hidden, size.feed_forward) == (32, 48)
    # keys and values of the one attention layer, 32 wide each
    assert size.cache_floats_per_token == 2 * 32


def test_grouped_heads_make_the_cache_narrower(tmp_path):
    save_policy(tiny_policy(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"num_attention_heads": 8, "num_key_value_heads": 2, "layer_types": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    size = policy_size(PolicyConfig(model=tmp_path))
    assert size.cache_floats_per_token == 2 * 3 * (2 * 32 // 8)


@pytest.mark.parametrize("text", ["{}", '{"hidden_size": "wide"}', "{", None])
def test_an_unreadable_model_is_one_message(tmp_path, text):
    if text is not None:
        save_policy(tiny_policy(), tmp_path)
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(PolicyError, match="size cannot be read" if text else "safetensors"):
        policy_size(PolicyConfig(model=tmp_path))


def test_a_named_model_is_planned_before_it_is_added(tmp_path, monkeypatch):
    monkeypatch.setenv(MODELS_VARIABLE, str(tmp_path / "none"))
    config = PolicyConfig.model_validate({"model": "smollm2", "lora": {"rank": 8}})
    size = policy_size(config)
    assert (size.parameters, size.hidden, size.attention_layers) == (134_515_008, 576, 30)
    assert size.cache_floats_per_token == 2 * 30 * 3 * 64
    assert 0 < size.trained < 5_000_000

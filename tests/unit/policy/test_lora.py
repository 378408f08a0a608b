"""Adapters: what is trained, what is written, and that every reader sees the same model."""

import copy
import json

import numpy as np
import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from espalier.config import LoraConfig, Profile
from espalier.policy.loading import load_policy, load_policy_to_train, save_policy
from espalier.policy.lora import adapter_off, add_adapter, has_adapter, merged_weights
from espalier.records import PolicyError
from espalier.records.adapter import AdapterBase
from espalier.rollout.engines.fused_decoder import FusedDecoder
from espalier.rollout.engines.hf_decoder import HfDecoder
from espalier.training.parallel import load_whole_weights, whole_weights
from espalier.training.rl.rows import dense_rows
from tests.factories import training_episodes
from tests.factories.causal_models import llama, qwen3
from tests.factories.tiny import tiny_policy

CONFIG = LoraConfig(rank=4, alpha=8.0)
IDS = torch.arange(10)[None]
LFM2_TARGET = ("q_proj", "in_proj", "w2")


def moved(model, *, seed=1):
    """The same model, its adapter no longer zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1, generator=generator)
    return model


def adapted(build):
    model = copy.deepcopy(build())
    add_adapter(model, CONFIG, seed=0)
    return moved(model)


@torch.no_grad()
def logits(model):
    return model.eval()(IDS, use_cache=False).logits


@pytest.fixture
def profile():
    return Profile.model_validate({"policy": {"lora": {"rank": 4, "target": LFM2_TARGET}}})


@pytest.fixture
def directory(tmp_path):
    save_policy(tiny_policy(), tmp_path / "base")
    return tmp_path / "base"


def test_a_fresh_or_switched_off_adapter_changes_nothing():
    model = copy.deepcopy(llama())
    before = logits(model)
    add_adapter(model, CONFIG, seed=0)
    assert has_adapter(model)
    assert torch.equal(logits(model), before)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if ".lora_" in name}
    moved(model)
    with adapter_off(model):
        assert torch.equal(logits(model), before)
    assert not torch.equal(logits(model), before)
    assert any(parameter.requires_grad for parameter in model.parameters())


def test_merged_weights_are_those_of_a_plain_model():
    model, merged = adapted(qwen3), copy.deepcopy(qwen3())
    weights = merged_weights(model)
    assert weights.keys() == merged.state_dict().keys()
    merged.load_state_dict(weights)
    torch.testing.assert_close(logits(merged), logits(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decoder", [FusedDecoder, HfDecoder])
def test_decoders_sample_from_the_adapted_model(decoder):
    model = adapted(llama)
    decoding = decoder(model)
    decoding.begin()
    hidden = decoding.advance(np.zeros(1, np.int64), np.array([10]), IDS[0].numpy())
    found = decoding.logits(hidden)[0]
    torch.testing.assert_close(found, logits(model)[0, -1], rtol=1e-4, atol=1e-4)


def test_a_kept_copy_is_the_adapter_alone():
    model = adapted(llama)
    kept, before = whole_weights(model), logits(model)
    assert all(".lora_" in name for name in kept)
    moved(model, seed=2)
    load_whole_weights(model, kept)
    assert torch.equal(logits(model), before)


def test_a_saved_policy_is_read_by_all(directory, profile, tmp_path):
    policy = load_policy_to_train(directory, profile, digest="sha256:0")
    moved(policy.model)
    expected = logits(policy.model)
    save_policy(policy, tmp_path / "trained")
    merged = load_policy(tmp_path / "trained").model
    torch.testing.assert_close(logits(merged), expected, rtol=1e-5, atol=1e-5)
    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    by_peft = peft.PeftModel.from_pretrained(plain, str(tmp_path / "trained" / "adapter"))
    torch.testing.assert_close(logits(by_peft), expected, rtol=1e-5, atol=1e-5)
    base = json.loads((tmp_path / "trained/adapter/base.json").read_text())
    assert base == {"name": "embedded", "digest": "sha256:0"}


def test_an_adapter_is_trained_further_and_keeps_its_base(directory, profile, tmp_path):
    first = load_policy_to_train(directory, profile, digest="sha256:0")
    moved(first.model)
    save_policy(first, tmp_path / "warm")
    again = load_policy_to_train(tmp_path / "warm", profile, digest="sha256:1")
    assert again.base == AdapterBase("embedded", "sha256:0")
    torch.testing.assert_close(logits(again.model), logits(first.model), rtol=1e-5, atol=1e-5)
    with adapter_off(again.model):
        untrained = logits(load_policy(directory).model)
        torch.testing.assert_close(logits(again.model), untrained, rtol=1e-5, atol=1e-5)


def test_unknown_layers_are_refused_with_those_there_are():
    with pytest.raises(PolicyError, match="down_proj"):
        add_adapter(copy.deepcopy(llama()), LoraConfig(target=("qkv",)), seed=0)


def test_an_update_moves_the_adapter_and_compares_with_the_base():
    policy = training_episodes.exact_policy()
    add_adapter(policy, LoraConfig(rank=4, target=LFM2_TARGET), seed=0)
    policy.double()
    moved(policy)
    groups = training_episodes.on_policy(training_episodes.mixed_groups(), policy)
    profile = training_episodes.profile_of({"preset": "grpo", "kl": {"coefficient": 0.1}})
    rows = dense_rows(groups, with_observations=False)
    units = [(row,) for row in range(len(rows))]
    update, models = training_episodes.make_update(policy, profile)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    figures = update.apply(rows, units, training_episodes.step_of(profile))
    after = policy.state_dict()
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert changed
    assert all(".lora_" in name for name in changed)
    assert figures["kl"] > 0  # the base is another policy than the one that is adapted
    assert models.reference.model is models.policy.model  # it takes no memory

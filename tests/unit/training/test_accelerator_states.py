"""What is done on an accelerator, with one that is made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from espalier.config import HardwareConfig
from espalier.policy.hardware import Hardware, copy_weights
from espalier.training.checkpoint import random_state, restore_random_state
from tests.factories.tiny import tiny_policy


@pytest.fixture
def accelerator(monkeypatch):
    """Its generator's state is the text in `state`; `is_there` says whether it can be used."""
    made = SimpleNamespace(state="drawn twice", is_there=True)
    module = SimpleNamespace(
        get_rng_state=lambda: made.state,
        set_rng_state=lambda state: setattr(made, "state", state),
    )
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: made.is_there)
    monkeypatch.setattr(torch, "get_device_module", lambda: module)
    return made


def test_the_generators_of_both_devices_are_kept(accelerator):
    states = random_state()
    drawn = torch.rand(3)
    accelerator.state = "drawn further"
    restore_random_state(states)
    assert accelerator.state == "drawn twice"
    assert torch.equal(torch.rand(3), drawn)


@pytest.mark.parametrize(("kept", "is_there"), [(True, False), (False, True), (False, False)])
def test_a_checkpoint_may_come_from_another_machine(accelerator, kept, is_there):
    accelerator.is_there = kept
    states = random_state()
    assert ("accelerator" in states) == kept
    accelerator.is_there, accelerator.state = is_there, "another machine's"
    restore_random_state(states)
    assert accelerator.state == "another machine's"


@pytest.mark.parametrize(
    ("asked", "has_bf16", "autocast"),
    [
        ("auto", True, torch.bfloat16),
        ("auto", False, None),
        ("float32", True, None),
        ("bfloat16", False, torch.bfloat16),
    ],
)
def test_a_gpu_computes_in_bfloat16_where_it_can(monkeypatch, asked, has_bf16, autocast):
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
    chosen = Hardware.from_config(HardwareConfig(device="auto", precision=asked))
    assert (chosen.device, chosen.autocast) == (gpu, autocast)


def test_without_an_accelerator_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert Hardware.from_config(HardwareConfig(device="auto")).device == torch.device("cpu")


def test_a_model_elsewhere_is_trained_as_a_copy():
    model = tiny_policy().model
    elsewhere = Hardware(torch.device("meta"), None).place(model)
    assert elsewhere is not model
    assert (elsewhere.device.type, model.device.type) == ("meta", "cpu")
    trained = tiny_policy(seed=1).model
    copy_weights(trained, model)
    copy_weights(trained, trained)
    for one, other in zip(trained.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_activations_are_computed_again_where_asked(monkeypatch):
    model = tiny_policy().model
    Hardware(model.device, None).place(model)
    assert not model.is_activation_checkpointing
    Hardware(model.device, None, checkpoints_activations=True).place(model)
    assert model.is_activation_checkpointing

"""What is done on an accelerator, with one that is made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from espalier.config import HardwareConfig
from espalier.policy.hardware import Hardware, copy_weights
from espalier.training.checkpoint import random_state, restore_random_state
from tests.factories.rl_loops import same_weights
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


@pytest.mark.parametrize(("kept", "is_there"), [(True, True), (True, False), (False, True)])
def test_generators_are_kept_whatever_machine_goes_on(accelerator, kept, is_there):
    accelerator.is_there = kept
    states = random_state()
    assert ("accelerator" in states) == kept
    drawn = torch.rand(3)
    accelerator.is_there, accelerator.state = is_there, "drawn further"
    restore_random_state(states)
    assert accelerator.state == ("drawn twice" if kept and is_there else "drawn further")
    assert torch.equal(torch.rand(3), drawn)


@pytest.mark.parametrize(
    ("device", "asked", "has_bf16", "autocast"),
    [
        ("cuda", "auto", True, torch.bfloat16),
        ("cuda", "auto", False, None),
        ("cuda", "float32", True, None),
        ("cuda", "bfloat16", False, torch.bfloat16),
        ("cpu", "auto", True, None),
        ("cpu", "bfloat16", False, torch.bfloat16),
    ],
)
def test_devices_compute_in_bfloat16_where_asked(monkeypatch, device, asked, has_bf16, autocast):
    found = torch.device(device) if device != "cpu" else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: found)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
    chosen = Hardware.from_config(HardwareConfig(device="auto", precision=asked))
    assert (chosen.device, chosen.autocast) == (torch.device(device), autocast)
    if device == "cpu":
        with chosen.precision():
            product = torch.ones(2, 2) @ torch.ones(2, 2)
        assert product.dtype == (autocast or torch.float32)
        model = tiny_policy().model
        assert chosen.place(model) is model


def test_a_model_elsewhere_is_trained_as_a_copy():
    model, trained = tiny_policy().model, tiny_policy(seed=1).model
    elsewhere = Hardware(torch.device("meta"), None).place(model)
    assert elsewhere is not model
    assert (elsewhere.device.type, model.device.type) == ("meta", "cpu")
    copy_weights(trained, model)
    copy_weights(trained, trained)
    assert same_weights(trained, model)
    Hardware(model.device, None).place(model)
    assert not model.is_activation_checkpointing
    Hardware(model.device, None, checkpoints_activations=True).place(model)
    assert model.is_activation_checkpointing

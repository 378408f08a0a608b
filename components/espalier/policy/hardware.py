"""The device that a policy computes on, and the number format of its matrix products."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from espalier.config import HardwareConfig


class Hardware(NamedTuple):
    """A device and the format of its matrix products; weights and sums stay float32."""

    device: torch.device
    autocast: torch.dtype | None
    """Number format of matrix products; None computes in float32 throughout."""
    checkpoints_activations: bool = False
    """Whether the backward pass recomputes activations."""

    @classmethod
    def from_config(cls, config: HardwareConfig) -> Hardware:
        """Return the profile's device; `auto` is an accelerator, with bfloat16, if there is one."""
        if config.device == "auto":
            accelerator = torch.accelerator.current_accelerator(check_available=True)
            device = accelerator or torch.device("cpu")
        else:
            device = torch.device(config.device)

        is_half = config.precision == "bfloat16"
        if config.precision == "auto" and device.type == "cuda":
            # some CPUs have bfloat16 too, but runs there are short, and float32 is bit-reproducible
            is_half = torch.cuda.is_bf16_supported(including_emulation=False)
        return cls(device, torch.bfloat16 if is_half else None, config.activation_checkpointing)

    @classmethod
    def for_sampling(cls, config: HardwareConfig) -> Hardware:
        """Return the device on which this process samples: the profile's GPU, or the CPU.

        It is the CPU if this machine has no such GPU, as sampling works without one. Other
        accelerators lack the double precision in which tokens are drawn.
        """
        chosen = cls.from_config(config)
        if chosen.device.type == "cuda" and torch.cuda.is_available():
            return chosen
        return cls(torch.device("cpu"), None)

    def precision(self) -> AbstractContextManager[object]:
        """Return a context in which matrix products use the chosen format."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)

    def autocast_on(self, device: torch.device) -> torch.dtype | None:
        """Return the engine's number format on `device`: on the CPU it is float32."""
        return None if device.type == "cpu" else self.autocast

    def place(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the model itself if it is on this device, else a copy on it."""
        if self.checkpoints_activations:
            model.activation_checkpointing_enable({"use_reentrant": False})
        # "cuda" is the process's own GPU, and a model that was moved there is on "cuda:0"
        own, present = self.device, model.device
        if own.type == present.type and own.index in (None, present.index):
            return model
        placed = copy.deepcopy(model)
        self.move(placed)
        return placed

    def move(self, model: PreTrainedModel) -> None:
        """Move the weights of `model` to this device, in place."""
        nn.Module.to(model, self.device)  # PreTrainedModel.to has no usable type


@torch.no_grad()
def copy_weights(trained: nn.Module, sampling: nn.Module) -> None:
    """Copy the weights of `trained` to `sampling`, unless both are one model."""
    if trained is sampling:
        return
    for target, source in zip(sampling.parameters(), trained.parameters(), strict=True):
        target.copy_(source.full_tensor() if isinstance(source, DTensor) else source)

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
    """None computes in float32 throughout."""
    checkpoints_activations: bool = False
    """Whether the backward pass computes them again."""

    @classmethod
    def from_config(cls, config: HardwareConfig) -> Hardware:
        """The profile's choice; `auto` is the accelerator if there is one, with bfloat16."""
        device = torch.device(config.device) if config.device != "auto" else _best_device()
        autocast = None
        if config.precision == "bfloat16" or (config.precision == "auto" and _has_bf16(device)):
            autocast = torch.bfloat16
        return cls(device, autocast, config.activation_checkpointing)

    def precision(self) -> AbstractContextManager[object]:
        """Context in which matrix products are computed in the chosen format."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)

    def place(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model itself if it is on this device, else a copy on it."""
        if self.checkpoints_activations:
            model.activation_checkpointing_enable({"use_reentrant": False})
        if model.device == self.device:
            return model
        placed = copy.deepcopy(model)
        nn.Module.to(placed, self.device)  # PreTrainedModel.to has no usable type
        return placed


@torch.no_grad()
def copy_weights(trained: nn.Module, sampling: nn.Module) -> None:
    """Copy the weights of `trained` to `sampling`, unless they are one model."""
    if trained is sampling:
        return
    for target, source in zip(sampling.parameters(), trained.parameters(), strict=True):
        target.copy_(source.full_tensor() if isinstance(source, DTensor) else source)


def _best_device() -> torch.device:
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def _has_bf16(device: torch.device) -> bool:
    # some CPUs have it too, but runs there are short, and float32 is reproducible bit for bit
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)

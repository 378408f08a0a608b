"""Checkpoints of a training loop: weights, optimizer, history, cursor; written atomically."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

_LATEST = "latest.pt"


def random_state() -> dict[str, torch.Tensor]:
    """The state of torch's generators, by device."""
    states = {"cpu": torch.get_rng_state()}
    if torch.accelerator.is_available():
        states["accelerator"] = torch.get_device_module().get_rng_state()
    return states


def restore_random_state(states: dict[str, torch.Tensor]) -> None:
    """Go on drawing where `random_state` was taken."""
    torch.set_rng_state(states["cpu"])
    if "accelerator" in states and torch.accelerator.is_available():
        torch.get_device_module().set_rng_state(states["accelerator"])


@dataclass(slots=True)
class Checkpoint:
    """Everything that a loop needs to go on as if it had never stopped."""

    step: int
    """Steps that are done."""
    model: dict[str, torch.Tensor]
    optimizer: dict[str, object]
    history: list[dict[str, float]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    """State of the loop's own: the best weights so far, pass rates, counters; typed by its loop."""
    rng: dict[str, torch.Tensor] = field(default_factory=random_state)
    """Of torch's generators, which dropout draws from. Tasks, tokens and minibatches are drawn by
    the step that they serve, from no state at all."""


class CheckpointStore:
    """The newest checkpoint of one stage, in its work directory."""

    def __init__(self, directory: Path, identity: str) -> None:
        self.directory = directory
        self._path = directory / _LATEST
        self._identity = identity
        directory.mkdir(parents=True, exist_ok=True)

    def load(self) -> Checkpoint | None:
        """The newest checkpoint of the same configuration and inputs, if there is one."""
        if not self._path.is_file():
            return None
        state = torch.load(self._path, weights_only=True, map_location="cpu")
        if state.pop("identity") != self._identity:
            return None
        return Checkpoint(**state)

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the newest checkpoint by one rename."""
        partial = self._path.with_suffix(".partial")
        state = {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}
        with partial.open("wb") as stream:
            torch.save({**state, "identity": self._identity}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(self._path)


def cloned_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the weights that later updates do not touch."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

"""The files that a training loop writes: its checkpoint (atomically) and its history table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from espalier.config import Profile
from espalier.policy.loading import Policy, load_policy_to_train
from espalier.records import NEWEST_CHECKPOINT, PolicyError, TrainingError, whole_file
from espalier.training.parallel import load_whole_weights


def random_state() -> dict[str, torch.Tensor]:
    """Return the state of torch's generators, by device."""
    states = {"cpu": torch.get_rng_state()}
    if torch.accelerator.is_available():
        states["accelerator"] = torch.get_device_module().get_rng_state()
    return states


def restore_random_state(states: dict[str, torch.Tensor]) -> None:
    """Set torch's generators to a state that `random_state` returned."""
    torch.set_rng_state(states["cpu"])
    if "accelerator" in states and torch.accelerator.is_available():
        torch.get_device_module().set_rng_state(states["accelerator"])


@dataclass(slots=True)
class Checkpoint:
    """The state from which a resumed loop gives the same result as an unbroken one."""

    step: int
    """Number of steps done."""
    model: dict[str, torch.Tensor]
    optimizer: dict[str, object]
    history: list[dict[str, float]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    """The loop's own state: the best weights so far, pass rates, counters."""
    rng: dict[str, torch.Tensor] = field(default_factory=random_state)
    """State of torch's generators, for dropout. Tasks, tokens and minibatches are drawn from
    generators that are seeded by the step, which have no state to keep."""


class CheckpointStore:
    """The newest checkpoint of one stage, in its work directory."""

    def __init__(self, directory: Path, identity: str) -> None:
        self.directory = directory
        self.identity = identity
        """Digest of configuration and inputs."""
        self._path = directory / NEWEST_CHECKPOINT
        directory.mkdir(parents=True, exist_ok=True)

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint; None without one of this configuration and inputs."""
        if not self._path.is_file():
            return None
        state = torch.load(self._path, weights_only=True, map_location="cpu")
        if state.pop("identity") != self.identity:
            return None
        return Checkpoint(**state)

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the newest checkpoint, atomically (by one rename).

        Raises:
            TrainingError: a weight is not finite: no run could go on from there, so the former
                checkpoint stays.
        """
        broken = [name for name, it in checkpoint.model.items() if not bool(it.isfinite().all())]
        if broken:
            raise TrainingError(
                f"step {checkpoint.step}: {len(broken)} of {len(checkpoint.model)} tensors of "
                f"weights are not finite (first {broken[0]}), so they were not saved. The same "
                "command goes on from the checkpoint before; if the weights break again, lower "
                'the optimizer\'s learning_rate, or set hardware.precision = "float32"'
            )
        state = {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}
        with whole_file(self._path) as draft, draft.open("wb") as stream:
            torch.save({**state, "identity": self.identity}, stream)


def checkpointed_policy(path: Path, start_dir: Path, profile: Profile) -> tuple[Policy, int]:
    """Load the policy of a checkpoint on the CPU; return it with the number of steps done.

    Args:
        path: file of the checkpoint, which may be replaced by a newer one meanwhile.
        start_dir: directory of the policy that its training began with.
        profile: the run's profile.

    Raises:
        PolicyError: there is no such policy, or the weights are not those of its model.
        TrainingError: there is no checkpoint.
    """
    on_cpu = profile.hardware.model_copy(update={"device": "cpu"})
    profile = profile.model_copy(update={"hardware": on_cpu})
    policy = load_policy_to_train(start_dir, profile, digest="")
    try:
        # mapped: the optimizer's state is most of the file, and is not read
        state = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except FileNotFoundError as error:
        raise TrainingError(
            f"{path}: no checkpoint is there any more; the stage has published since"
        ) from error
    try:
        load_whole_weights(policy.model, state["model"])
    except (KeyError, RuntimeError) as error:
        raise PolicyError(f"{path}: not weights of {start_dir}: {error}") from error
    return policy, state["step"]


def cloned_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of the weights, on their device, that later updates do not change."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def write_history(path: Path, rows: Sequence[dict[str, float]], columns: Sequence[str]) -> None:
    """Write `rows` as parquet, one per optimizer step: `columns` first, the others by name.

    A figure that a row lacks is null. Times are left out, so that equal seeds give equal tables.
    """
    others = {name for row in rows for name in row}.difference(columns)
    names = [*columns, *sorted(others)]
    table = {name: pa.array([row.get(name) for row in rows], pa.float64()) for name in names}
    pq.write_table(pa.table(table), path)

"""Processes that train one model: each scores its share, all hold the same weights.

Every process runs the same loop on the same seeds. The results of each are summed or gathered here,
so that they equal those of one process up to the order of the sums. Weights and
optimizer state may be sharded (FSDP2). They are gathered before they are written: a checkpoint is
the same whether the model was sharded or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from espalier.policy.lora import has_adapter

Item = TypeVar("Item")


class Position(NamedTuple):
    """The progress of a process, as counted by its collective operations."""

    number: int
    """Number of collective operations that it has begun."""
    name: str
    """The newest operation."""
    is_inside: bool
    """Whether it is in that operation, rather than at work after it."""
    since_s: float
    """When that operation began or ended, by `time.monotonic`."""


class Processes:
    """One of `count` processes, and its collective operations."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank = rank
        self.count = count
        self.position = Position(0, "its start", is_inside=False, since_s=time.monotonic())
        self.step = 0
        """Training step that this process is in; 0 before the first."""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which evaluates, logs and writes checkpoints."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> list[tuple[Item, float]]:
        """This process's items, items[rank::count], each with weight 1.

        Every process gets equally many, as the forward pass of a sharded model is a collective
        operation: a process with one item fewer gets the first item again, with weight 0.
        """
        rounds = -(-len(items) // self.count)
        numbers = [turn * self.count + self.rank for turn in range(rounds)]
        return [(items[n], 1.0) if n < len(items) else (items[0], 0.0) for n in numbers]

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the processes."""
        if self.count == 1:
            return
        by_type: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for same in by_type.values():
            # one message for all tensors, not one each
            flat_N = torch.cat([tensor.reshape(-1) for tensor in same])
            with self._inside("a sum of tensors"):
                dist.all_reduce(flat_N)
            for tensor, summed in zip(same, flat_N.split([t.numel() for t in same]), strict=True):
                tensor.copy_(summed.view_as(tensor))

    def gather(self, item: Item) -> list[Item]:
        """Return the item of every process, by rank."""
        if self.count == 1:
            return [item]
        gathered: list[Any] = [None] * self.count
        with self._inside("an exchange of what each has"):
            dist.all_gather_object(gathered, item)
        return cast("list[Item]", gathered)

    def broadcast(self, item: Item) -> Item:
        """Return rank 0's item, on every process."""
        if self.count == 1:
            return item
        box = [item]
        with self._inside("a broadcast by rank 0"):
            dist.broadcast_object_list(box, src=0)
        return box[0]

    @contextmanager
    def _inside(self, name: str) -> Generator[None]:
        number = self.position.number + 1
        self.position = Position(number, name, is_inside=True, since_s=time.monotonic())
        yield
        self.position = Position(number, name, is_inside=False, since_s=time.monotonic())


def sum_gradients(model: nn.Module, processes: Processes) -> None:
    """Sum the gradients over the processes; FSDP has already done so for sharded parameters."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    processes.sum(gradient for gradient in gradients if not isinstance(gradient, DTensor))


def shard(model: nn.Module, processes: Processes, device: torch.device) -> None:
    """Split `model` over the processes in place, block by block.

    Args:
        model: called only as a whole, never by its submodules; equal weights on every process.
        processes: at least two processes.
        device: device of the weights.
    """
    mesh = init_device_mesh(device.type, (processes.count,))
    for block in _blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # losses are normalised over the whole minibatch: sum gradients, do not average them
            module.set_gradient_divide_factor(1.0)


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the trained weights, on the host and unsharded, that updates do not change.

    It has all weights, buffers included; for a model with an adapter, only the adapter.
    """
    if has_adapter(model):
        weights = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    else:
        weights = model.state_dict().items()
    return {name: whole(tensor).detach().to("cpu", copy=True) for name, tensor in weights}


def load_whole_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights that `whole_weights` returned, or others of the same names, into `model`."""
    held = model.state_dict()
    split = {name: _sharded_like(held[name], tensor) for name, tensor in weights.items()}
    model.load_state_dict(split, strict=not has_adapter(model))


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimizer's state, unsharded."""
    plain = optimizer.state_dict()
    return {**plain, "state": {n: _map_tensors(whole, kept) for n, kept in plain["state"].items()}}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load what `optimizer_state` returned."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    split: dict[int, dict[str, Any]] = {}
    for number, kept in state["state"].items():
        held: Tensor = parameters[number]
        split[number] = _map_tensors(
            lambda tensor, held=held: (
                _sharded_like(held, tensor) if tensor.shape == held.shape else tensor
            ),
            kept,
        )
    optimizer.load_state_dict({**state, "state": split})


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor itself, or a sharded tensor gathered from all processes."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _map_tensors(change: Callable[[Tensor], Tensor], kept: Mapping[str, Any]) -> dict[str, Any]:
    return {name: change(v) if isinstance(v, Tensor) else v for name, v in kept.items()}


def _sharded_like(held: Tensor, tensor: Tensor) -> Tensor:
    if not isinstance(held, DTensor):
        return tensor
    placed = tensor.to(held.device)
    return distribute_tensor(placed, held.device_mesh, held.placements)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the transformer's layers: the longest list of modules in it."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=len)) if lists else []

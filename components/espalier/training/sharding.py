"""Weights and optimizer state split over processes (FSDP2), and put together again.

Every function here is a matter of all processes at once. What they return is whole, so that a
checkpoint looks the same whether the model was sharded or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from espalier.training.parallel import Processes


def shard(model: nn.Module, processes: Processes, device: torch.device) -> None:
    """Split `model` over the processes in place, block by block.

    Args:
        model: is only ever called as a whole; the same weights on every process.
        processes: at least two.
        device: of the weights.
    """
    mesh = init_device_mesh(device.type, (processes.count,))
    for block in _blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # losses are shares of the whole already: gradients are summed, and not averaged
            module.set_gradient_divide_factor(1.0)


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights that later updates do not touch, each tensor whole."""
    return {name: whole(tensor).detach().clone() for name, tensor in model.state_dict().items()}


def load_whole_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Put weights that `whole_weights` returned into `model`."""
    held = model.state_dict()
    model.load_state_dict({name: _like(held[name], tensor) for name, tensor in weights.items()})


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state, each tensor whole."""
    plain = optimizer.state_dict()
    return {**plain, "state": {n: _each(whole, kept) for n, kept in plain["state"].items()}}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Put back what `optimizer_state` returned."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    split: dict[int, dict[str, Any]] = {}
    for number, kept in state["state"].items():
        held: Tensor = parameters[number]
        split[number] = _each(
            lambda tensor, held=held: _like(held, tensor) if tensor.shape == held.shape else tensor,
            kept,
        )
    optimizer.load_state_dict({**state, "state": split})


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or all shards of it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _each(change: Callable[[Tensor], Tensor], kept: Mapping[str, Any]) -> dict[str, Any]:
    return {name: change(v) if isinstance(v, Tensor) else v for name, v in kept.items()}


def _like(held: Tensor, tensor: Tensor) -> Tensor:
    if not isinstance(held, DTensor):
        return tensor
    placed = tensor.to(held.device)
    return distribute_tensor(placed, held.device_mesh, held.placements)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The transformer's layers: the longest list of modules in it."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=len)) if lists else []

"""Several processes that train one model: each scores its share, all hold the same weights.

Every process runs the same loop on the same seeds; what a process computed alone is summed or
gathered here, so that the results are those of one process up to the order of the sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

Item = TypeVar("Item")


class Processes:
    """One process among `count`; a single one talks to nobody."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank = rank
        self.count = count

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that judges, reports and publishes."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> list[tuple[Item, float]]:
        """This process's items, every `count`-th one, with their weight, 1.

        Every process gets equally many, as a sharded model computes on all of them together: one
        that would have less repeats an item with weight 0.
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
            # one message for all, not one a tensor
            flat_N = torch.cat([tensor.reshape(-1) for tensor in same])
            dist.all_reduce(flat_N)
            for tensor, summed in zip(same, flat_N.split([t.numel() for t in same]), strict=True):
                tensor.copy_(summed.view_as(tensor))

    def gather(self, item: Item) -> list[Item]:
        """The item of every process, by rank."""
        if self.count == 1:
            return [item]
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, item)
        return cast("list[Item]", gathered)

    def of_first(self, item: Item) -> Item:
        """The first process's item."""
        if self.count == 1:
            return item
        box = [item]
        dist.broadcast_object_list(box, src=0)
        return box[0]


def sum_gradients(model: nn.Module, processes: Processes) -> None:
    """Make every process's gradient that of all of them; a sharded model has done so already."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    processes.sum(gradient for gradient in gradients if not isinstance(gradient, DTensor))

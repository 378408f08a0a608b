"""Several processes that train one model: each scores its share, all hold the same weights.

Every process runs the same loop on the same seeds; what a process computed alone is summed or
gathered here, so that the results are those of one process up to the order of the sums.
"""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

Item = TypeVar("Item")

TIMEOUT = timedelta(hours=1)
"""How long one process waits for another: the first judges dev questions and writes checkpoints."""
JOIN_TIMEOUT = timedelta(minutes=5)
"""How long the first waits for the others to start; importing torch takes seconds."""


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


@contextmanager
def joined(rank: int, count: int, *, port: int, device: torch.device) -> Generator[Processes]:
    """Join the group that meets at `port` of this machine; left again at the end."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage] (documented, not listed)
        "127.0.0.1", port, count, is_master=rank == 0, timeout=JOIN_TIMEOUT
    )
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=TIMEOUT)
    try:
        yield Processes(rank, count)
    finally:
        dist.destroy_process_group()


@contextmanager
def team(
    count: int, *, device: torch.device, companion: Callable[[Processes], None]
) -> Generator[Processes]:
    """This process as the first of `count`; the others are started, and run `companion`.

    Args:
        count: 1 starts none.
        device: where they compute; several GPUs are taken in their order.
        companion: what the others do beside the body of this context; can be pickled.

    Yields:
        What this process is among them. Its CPU threads are shared out while it lasts.
    """
    if count == 1:
        yield Processes()
        return
    threads = torch.get_num_threads()
    settings = _Settings(
        count=count,
        port=free_port(),
        device=device,
        threads=max(1, threads // count),
        is_deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=_accompany, args=(rank, settings, companion), daemon=True)
        for rank in range(1, count)
    ]
    for other in others:
        other.start()
    torch.set_num_threads(settings.threads)
    try:
        with joined(0, count, port=settings.port, device=device) as processes:
            yield processes
        for other in others:
            other.join()
    finally:
        torch.set_num_threads(threads)
        for other in others:
            other.terminate()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    count: int
    port: int
    device: torch.device
    threads: int
    is_deterministic: bool


def _accompany(rank: int, settings: _Settings, companion: Callable[[Processes], None]) -> None:
    torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(mode=settings.is_deterministic)
    if settings.device.type == "cuda":
        torch.cuda.set_device(rank)
    with joined(rank, settings.count, port=settings.port, device=settings.device) as processes:
        companion(processes)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def sum_gradients(model: nn.Module, processes: Processes) -> None:
    """Make every process's gradient that of all of them; a sharded model has done so already."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    processes.sum(gradient for gradient in gradients if not isinstance(gradient, DTensor))

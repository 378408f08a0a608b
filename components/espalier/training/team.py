"""Processes that train one model together, and where they meet.

The first is the one that training was started in: it has its companions started, and trains with
them as one of the group.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import (
    TCPStore,  # pyright: ignore[reportPrivateImportUsage] (documented, not listed)
)

from espalier.records import TrainingError
from espalier.training.companions import Companions, MakesCompanions, watched
from espalier.training.parallel import Processes

TIMEOUT = timedelta(hours=1)
"""How long one process waits for another: the first judges dev questions and writes checkpoints."""
JOIN_TIMEOUT = timedelta(minutes=5)
"""How long the first waits for the others to start; importing torch takes seconds."""
_LOOKS_EVERY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """Where processes meet, and how each of them computes."""

    address: str
    port: int
    count: int
    device: torch.device
    threads: int
    is_deterministic: bool


@contextmanager
def team(
    count: int,
    *,
    device: torch.device,
    companion: Callable[[Processes], None],
    companions: MakesCompanions,
) -> Generator[Processes]:
    """This process as the first of `count`; the others are started, and run `companion`.

    Args:
        count: 1 starts none.
        device: where they compute; each has a GPU of its own.
        companion: what the others do beside the body of this context; can be pickled.
        companions: starts them.

    Yields:
        What this process is among them. Its CPU threads are shared out to those on its cores.

    Raises:
        TrainingError: there is no place for so many, some do not come, or one is lost.
    """
    if count == 1:
        yield Processes()
        return
    threads = torch.get_num_threads()
    with companions(count, device) as others, _listening(others.address, count) as listener:
        meeting = _Meeting(
            address=others.address,
            port=listener.getsockname()[1],
            count=count,
            device=device,
            threads=max(1, threads // count) if others.share_cores else threads,
            is_deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        others.start(partial(_accompany, meeting, companion))
        # held until the others have ended: they may ask it to the last
        store = _store(meeting, listener=listener)
        try:
            _await(others, store, meeting)
            with _joined(meeting, store, rank=0, gpu=0) as processes, watched(others):
                yield processes
            others.wait()
        finally:
            torch.set_num_threads(threads)


@contextmanager
def _listening(address: str, count: int) -> Generator[socket.socket]:
    """A port of this one address: left to itself, torch would listen on all of the machine's."""
    with socket.create_server((address, 0), backlog=count) as listener:
        yield listener


def _store(meeting: _Meeting, *, listener: socket.socket | None = None) -> TCPStore:
    """The table by which they find each other; who has the listener keeps it."""
    return TCPStore(
        meeting.address,
        meeting.port,
        meeting.count,
        is_master=listener is not None,
        timeout=JOIN_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def _await(companions: Companions, store: TCPStore, meeting: _Meeting) -> None:
    """Return when all have come.

    Raises:
        TrainingError: one has ended before, or does not come.
    """
    deadline = time.monotonic() + JOIN_TIMEOUT.total_seconds()
    absent = list(range(1, meeting.count))
    while absent := [rank for rank in absent if not store.check([_here(rank)])]:
        if loss := companions.loss():
            raise TrainingError(loss)
        if time.monotonic() > deadline:
            raise TrainingError(
                f"of {meeting.count} processes that train together, ranks {absent} did not reach "
                f"{meeting.address}:{meeting.port} within {JOIN_TIMEOUT}; see their lines above, "
                "and whether a firewall or a network policy lies between"
            )
        time.sleep(_LOOKS_EVERY_S)


def _accompany(
    meeting: _Meeting, companion: Callable[[Processes], None], rank: int, gpu: int
) -> None:
    torch.use_deterministic_algorithms(mode=meeting.is_deterministic)
    store = _store(meeting)
    store.set(_here(rank), "")
    with _joined(meeting, store, rank=rank, gpu=gpu) as processes:
        companion(processes)


def _here(rank: int) -> str:
    return f"here/{rank}"


@contextmanager
def _joined(meeting: _Meeting, store: TCPStore, *, rank: int, gpu: int) -> Generator[Processes]:
    """Be one of the group; it is left again at the end."""
    torch.set_num_threads(meeting.threads)
    backend = "gloo"
    if meeting.device.type == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        # the rank counts over all machines, and a GPU is a number on its own
        torch.cuda.set_device(gpu)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=meeting.count, timeout=TIMEOUT
    )
    try:
        yield Processes(rank, meeting.count)
    finally:
        dist.destroy_process_group()

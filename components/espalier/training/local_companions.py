"""The other processes of a team as children of this one, on the same machine."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

import torch

from espalier.records import TrainingError
from espalier.training.companions import Duty, told_loss


class LocalCompanions:
    """Processes of this machine; several GPUs are taken in their order."""

    address = "127.0.0.1"
    share_cores = True

    def __init__(self, count: int) -> None:
        """`count` includes the first process, which is this one."""
        self._count = count
        self._started: dict[int, BaseProcess] = {}

    def start(self, duty: Duty) -> None:
        """See `Companions`."""
        context = multiprocessing.get_context("spawn")
        for rank in range(1, self._count):
            process = context.Process(target=duty, args=(rank, rank), daemon=True)
            process.start()
            self._started[rank] = process

    def loss(self) -> str | None:
        """See `Companions`; a signal came from outside, and what others say follows from it."""
        codes = {rank: process.exitcode for rank, process in self._started.items()}
        lost = {rank: code for rank, code in codes.items() if code}
        if not lost:
            return None
        rank = min(lost, key=lost.__getitem__)
        code = lost[rank]
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}, see its lines above"
        return told_loss(rank, self._count, how)

    def wait(self) -> None:
        """See `Companions`."""
        for process in self._started.values():
            process.join()

    def end(self) -> None:
        """End those that still run."""
        for process in self._started.values():
            process.terminate()
        self.wait()


@contextmanager
def local_companions(count: int, device: torch.device) -> Generator[LocalCompanions]:
    """Companions on this machine, ended with the block.

    Raises:
        TrainingError: there are fewer GPUs than processes.
    """
    if device.type == "cuda" and torch.cuda.device_count() < count:
        raise TrainingError(
            f"training.processes={count} asks for a GPU each, and this machine has "
            f"{torch.cuda.device_count()}; lower it to that, or train on several nodes "
            "(kubernetes.ray.workers)"
        )
    companions = LocalCompanions(count)
    try:
        yield companions
    finally:
        companions.end()

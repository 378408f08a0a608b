"""Launch and join worker processes: several processes that train one model together.

The process that started training is rank 0. It starts the workers (ranks 1, 2, ...) on this
machine, on the nodes of a Ray cluster (`ray_workers`) or of a TrainJob (`nodes`), trains with them
as one process group, and ends with an error when one of them is lost.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed import (
    TCPStore,  # pyright: ignore[reportPrivateImportUsage] (documented, not listed)
)

from espalier.determinism import TRAINER_VARIABLE, prepared_environment
from espalier.records import LostWorkerError, TrainingError
from espalier.training.nodes import Nodes, node_workers
from espalier.training.parallel import Processes
from espalier.training.rank_watch import ranks_watched

_TORCH_WAITS_LONGER_S = 60.0
"""Extra time of torch's own timeout: the watch over the ranks, which names the rank that hangs,
must end the wait first."""
_STORE_ANSWERS_WITHIN = timedelta(seconds=10)
"""Time limit for the watch's requests to the store."""
JOIN_TIMEOUT = timedelta(minutes=5)
"""How long rank 0 waits for the workers to join; importing torch takes seconds."""
_JOIN_POLL_INTERVAL_S = 0.1
_POLL_INTERVAL_S = 1.0
_FAILURE_KNOWN_WITHIN_S = 30.0
"""Time to wait for the cause of a broken connection: it raises at once, but Ray reports the end of
a process on another node later."""
_UNNOTICED_FOR_S = 30.0
"""How long rank 0 may continue without an error of its own after a worker is lost."""

_log = logging.getLogger(__name__)

WorkerMain = Callable[[int, int], None]
"""Main function of a worker: takes its rank, and the index of its GPU among the visible ones."""


class Workers(Protocol):
    """The processes of ranks 1, 2, ...; the launcher that made them also ends them."""

    @property
    def address(self) -> str:
        """Address of rank 0's machine, as the workers reach it."""
        ...

    @property
    def on_machine(self) -> int:
        """Number of processes that share the CPU cores of a machine, rank 0 included."""
        ...

    def start(self, main: WorkerMain) -> None:
        """Run `main`, which must be picklable, on ranks 1, 2, ..."""
        ...

    def failure(self) -> TrainingError | None:
        """Return an error if a worker has failed: which one, how, and the remedy."""
        ...

    def wait(self) -> None:
        """Return when all workers have ended."""
        ...

    def kill(self) -> None:
        """Kill all workers at once, stopped ones as well, without waiting for their end."""
        ...


def lost_worker_message(rank: int, count: int, how: str, *, where: str = "") -> str:
    """Return the error message for a lost worker.

    Args:
        rank: rank of the lost worker.
        count: number of processes, rank 0 included.
        how: how it ended.
        where: its node, if that is not this machine.
    """
    place = f", on node {where}," if where else ""
    return (
        f"rank {rank} of {count} processes that train together{place} has ended: {how}; the same "
        "command goes on from the last checkpoint"
    )


WorkerLauncher = Callable[[int, torch.device], AbstractContextManager[Workers]]
"""Starts workers, given the number of processes (rank 0 included) and the kind of device; leaving
the context ends them. Raises TrainingError if there are too few GPUs or nodes."""


_KILLED = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit codes of a process that somebody else ended, such as the kernel without memory left."""


def _blame(code: int) -> int:
    """Order of exit codes: a process that ended first, before those that this made fail."""
    if code in _KILLED:
        return 0
    if code == -signal.SIGABRT:  # by NCCL's watchdog, when another rank is gone
        return 3
    return 1 if code < 0 else 2


@contextmanager
def worker_failures_reported(workers: Workers) -> Generator[None]:
    """Replace the errors of a broken connection by one that names the lost worker.

    Raises:
        TrainingError: a worker is lost.
    """
    done = threading.Event()
    watch = threading.Thread(target=_exit_if_stuck, args=(workers, done), daemon=True)
    watch.start()
    try:
        yield
    except RuntimeError as error:  # torch has no narrower error for a peer that is gone
        # rank 0 is still in the group, so it is not the cause of a worker's failure now
        if failure := _failure_soon(workers):
            raise failure from error
        raise
    finally:
        done.set()
        watch.join()


def _exit_if_stuck(workers: Workers, done: threading.Event) -> None:
    """Exit this process if it hangs in an operation with a worker whose machine is gone.

    A machine that is switched off closes no connection, and no exception interrupts torch's
    collectives: only exiting the process ends the wait.
    """
    while not done.wait(_POLL_INTERVAL_S):
        if workers.failure() is None or done.wait(_UNNOTICED_FOR_S):
            continue
        if failure := workers.failure():  # a node that was only silent may speak again
            _log.critical("error: %s", failure)
            # the exit code that `FailureMessage` would give
            os._exit(os.EX_TEMPFAIL if isinstance(failure, LostWorkerError) else 1)


def _failure_soon(workers: Workers) -> TrainingError | None:
    deadline = time.monotonic() + _FAILURE_KNOWN_WITHIN_S
    while (failure := workers.failure()) is None and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S / 10)
    return failure


class LocalWorkers:
    """Worker processes on this machine; each uses the GPU of its place among them."""

    address = "127.0.0.1"

    def __init__(self, count: int, ranks: range | None = None) -> None:
        """Prepare workers.

        Args:
            count: number of processes that train together, on all machines.
            ranks: those of this machine; 0, if among them, is this process. None: all.
        """
        self._count = count
        self._ranks = range(count) if ranks is None else ranks
        self._started: dict[int, BaseProcess] = {}

    @property
    def on_machine(self) -> int:
        """Number of processes on this machine, rank 0 included."""
        return len(self._ranks)

    @property
    def has_ended(self) -> bool:
        """Whether every worker has ended without a failure."""
        return all(process.exitcode == 0 for process in self._started.values())

    def start(self, main: WorkerMain) -> None:
        """Run `main`, which must be picklable, on the ranks of this machine, except rank 0."""
        context = multiprocessing.get_context("spawn")
        for gpu, rank in enumerate(self._ranks):
            if rank > 0:
                process = context.Process(target=main, args=(rank, gpu), daemon=True)
                process.start()
                self._started[rank] = process

    def failure(self) -> TrainingError | None:
        """Return an error that names a worker that was killed before those that it made fail."""
        codes = {rank: process.exitcode for rank, process in self._started.items()}
        lost = {rank: code for rank, code in codes.items() if code}
        if not lost:
            return None
        rank = min(lost, key=lambda rank: _blame(lost[rank]))
        code = lost[rank]
        how = (
            signal.Signals(-code).name if code < 0 else f"exit code {code}, see its log lines above"
        )
        # a rank ends itself with EX_TEMPFAIL if it has waited too long for another one
        is_lost = code in _KILLED or code == os.EX_TEMPFAIL
        kind = LostWorkerError if is_lost else TrainingError
        return kind(lost_worker_message(rank, self._count, how))

    def wait(self) -> None:
        """Return when all workers have ended."""
        for process in self._started.values():
            process.join()

    def kill(self) -> None:
        """Kill all workers at once, stopped ones as well, without waiting for their end."""
        for process in self._started.values():
            process.kill()

    def end(self) -> None:
        """Terminate the workers that still run."""
        for process in self._started.values():
            process.terminate()
        self.wait()


def require_gpus(count: int, device: torch.device) -> None:
    """Check that this machine has a GPU for each of `count` processes, if they compute on GPUs.

    Raises:
        TrainingError: it has fewer.
    """
    if device.type == "cuda" and torch.cuda.device_count() < count:
        raise TrainingError(
            f"training.processes asks for {count} GPUs of this machine, one each, and this machine "
            f"has {torch.cuda.device_count()}; lower training.processes, or train on several nodes "
            "(kubernetes.nodes)"
        )


@contextmanager
def local_workers(count: int, device: torch.device) -> Generator[LocalWorkers]:
    """Yield workers on this machine, which are ended with the block.

    Raises:
        TrainingError: there are fewer GPUs than processes.
    """
    require_gpus(count, device)
    workers = LocalWorkers(count)
    try:
        yield workers
    finally:
        workers.end()


def worker_launcher(environment: Mapping[str, str]) -> WorkerLauncher:
    """Return the launcher for all nodes of a RayJob or TrainJob, else for this machine."""
    if environment.get(TRAINER_VARIABLE) == "rayjob":
        from espalier.training.ray_workers import ray_workers

        return partial(ray_workers, environment=prepared_environment())
    nodes = Nodes.of(environment)
    return local_workers if nodes.count == 1 else partial(node_workers, nodes=nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupSetup:
    """Address of the process group's store, and settings that all processes share."""

    address: str
    port: int
    count: int
    device: torch.device
    threads: int
    is_deterministic: bool
    timeout_s: float


@contextmanager
def training_processes(
    count: int,
    *,
    device: torch.device,
    worker_main: Callable[[Processes], None],
    launcher: WorkerLauncher,
    timeout_s: float,
) -> Generator[Processes]:
    """Join a process group of `count` as rank 0; the other ranks run during this block.

    Args:
        count: number of processes; 1 starts none.
        device: where they compute; on "cuda" each has a GPU of its own.
        worker_main: main function of ranks > 0; must be picklable.
        launcher: starts the other ranks.
        timeout_s: longest wait for a rank; then this process ends with an error that names it.

    Yields:
        Rank 0's view of the group. CPU threads are divided among processes on the same cores.

    Raises:
        TrainingError: too few GPUs or nodes, or a worker does not join or is lost.
    """
    if count == 1:
        yield Processes()
        return
    threads = torch.get_num_threads()
    with launcher(count, device) as workers, _listening(workers.address, count) as listener:
        setup = _GroupSetup(
            address=workers.address,
            port=listener.getsockname()[1],
            count=count,
            device=device,
            threads=max(1, threads // workers.on_machine),
            is_deterministic=torch.are_deterministic_algorithms_enabled(),
            timeout_s=timeout_s,
        )
        workers.start(partial(_run_worker, setup, worker_main))
        # kept until the workers have ended, as they may use the store until then
        store = _store(setup, listener=listener)
        try:
            _wait_for_workers(workers, store, setup)
            with ExitStack() as group:
                # a worker that is lost while the others join is waited for by torch alone
                with worker_failures_reported(workers):
                    processes = group.enter_context(_joined(setup, store, rank=0, gpu=0))
                with (
                    ranks_watched(
                        processes,
                        partial(_store, setup, timeout=_STORE_ANSWERS_WITHIN),
                        limit_s=timeout_s,
                        end_workers=workers.kill,
                    ),
                    worker_failures_reported(workers),
                ):
                    yield processes
            workers.wait()
        finally:
            torch.set_num_threads(threads)


@contextmanager
def _listening(address: str, count: int) -> Generator[socket.socket]:
    """Listen on this address only: torch by itself would listen on all addresses."""
    with socket.create_server((address, 0), backlog=count) as listener:
        yield listener


def _store(
    setup: _GroupSetup,
    *,
    listener: socket.socket | None = None,
    timeout: timedelta | None = None,
) -> TCPStore:
    """The key-value store through which the processes find each other; rank 0 serves it."""
    return TCPStore(
        setup.address,
        setup.port,
        setup.count,
        is_master=listener is not None,
        timeout=timeout or JOIN_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def _wait_for_workers(workers: Workers, store: TCPStore, setup: _GroupSetup) -> None:
    """Return when every worker has reached the store.

    Raises:
        TrainingError: a worker has failed, or does not arrive in time.
    """
    deadline = time.monotonic() + JOIN_TIMEOUT.total_seconds()
    absent = list(range(1, setup.count))
    while absent := [rank for rank in absent if not store.check([_arrival_key(rank)])]:
        if failure := workers.failure():
            raise failure
        if time.monotonic() > deadline:
            raise TrainingError(
                f"of {setup.count} processes that train together, ranks {absent} did not reach "
                f"{setup.address}:{setup.port} within {JOIN_TIMEOUT}; see their log lines above, "
                "and whether a firewall or a network policy lies between"
            )
        time.sleep(_JOIN_POLL_INTERVAL_S)


def _run_worker(
    setup: _GroupSetup, worker_main: Callable[[Processes], None], rank: int, gpu: int
) -> None:
    torch.use_deterministic_algorithms(mode=setup.is_deterministic)
    store = _store(setup)
    store.set(_arrival_key(rank), "")
    with (
        _joined(setup, store, rank=rank, gpu=gpu) as processes,
        ranks_watched(
            processes,
            partial(_store, setup, timeout=_STORE_ANSWERS_WITHIN),
            limit_s=setup.timeout_s,
            end_workers=lambda: None,
        ),
    ):
        worker_main(processes)


def _arrival_key(rank: int) -> str:
    return f"here/{rank}"


@contextmanager
def _joined(setup: _GroupSetup, store: TCPStore, *, rank: int, gpu: int) -> Generator[Processes]:
    torch.set_num_threads(setup.threads)
    backend = "gloo"
    if setup.device.type == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        # not the rank, which counts the processes of all machines
        torch.cuda.set_device(gpu)
    timeout = timedelta(seconds=setup.timeout_s + _TORCH_WAITS_LONGER_S)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=setup.count, timeout=timeout
    )
    try:
        yield Processes(rank, setup.count)
    finally:
        dist.destroy_process_group()

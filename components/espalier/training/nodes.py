"""Training's workers on the nodes of a TrainJob, whose pods all run the same command.

The first node's step trains, with ranks in its own pod and in those of the others. Each of the
others runs this module instead (`serve`): it waits for the first node at the address that Kubeflow
Trainer gives to all, starts its ranks, and says when one of them has failed. Where the first node
is lost, it waits for the next attempt of it.

They speak through a key-value store of torch. Like torch's own traffic it is neither encrypted nor
authenticated: a network policy (`k8s/trainer`) keeps others out.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import socket
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn, Self

from espalier.cluster.signals import on_signals
from espalier.determinism import prepare_environment
from espalier.records import LostWorkerError, TrainingError

if TYPE_CHECKING:
    import torch
    from torch.distributed import (
        TCPStore,  # pyright: ignore[reportPrivateImportUsage] (documented, not listed)
    )

    from espalier.training.launch import LocalWorkers, WorkerMain

NODES_VARIABLE = "PET_NNODES"
"""Number of a TrainJob's nodes; Trainer sets this and the next three, which torchrun also reads
(pkg/constants/constants.go)."""
INDEX_VARIABLE = "PET_NODE_RANK"
_ADDRESS_VARIABLE = "PET_MASTER_ADDR"
_PORT_VARIABLE = "PET_MASTER_PORT"

_NODES_WITHIN_S = 900.0
"""How long the first node waits for the others, whose pods may wait for a node pool to grow."""
_NAME_WITHIN_S = 120.0
"""How long the name of this pod may take to be known."""
_ANSWERS_WITHIN = timedelta(seconds=10)
_SILENT_FOR_S = 20.0
"""A node that has said nothing for so long is lost. Less than what a broken connection waits for
its cause (`launch`)."""
_LEFT_WITHIN_S = 60.0
_POLL_INTERVAL_S = 1.0
_ORDER = "order"
"""Key of what the ranks run, pickled, with their number."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of this pod's TrainJob."""

    count: int = 1
    index: int = 0
    """This pod's; 0: the first node, which trains and publishes."""
    address: str = ""
    """Host name of the first node."""
    port: int = 0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Read Trainer's variables; without them there is one node.

        Raises:
            TrainingError: one of them is missing or no number.
        """
        if environment.get(NODES_VARIABLE, "1") == "1":
            return cls()
        try:
            return cls(
                int(environment[NODES_VARIABLE]),
                int(environment[INDEX_VARIABLE]),
                environment[_ADDRESS_VARIABLE],
                int(environment[_PORT_VARIABLE]),
            )
        except (KeyError, ValueError) as error:
            raise TrainingError(
                f"{NODES_VARIABLE}={environment[NODES_VARIABLE]} says that this TrainJob has "
                f"several nodes, but the variables beside it do not name them ({error})"
            ) from error

    def ranks(self, index: int, processes: int) -> range:
        """Ranks of a node, of `processes` in all; each node has equally many."""
        each = processes // self.count
        return range(index * each, (index + 1) * each)


class NodeWorkers:
    """Workers of this pod and of the other nodes' pods."""

    def __init__(self, nodes: Nodes, count: int, address: str, store: TCPStore) -> None:
        """Prepare the workers of nodes that are there.

        Args:
            nodes: the nodes; this pod is the first.
            count: number of processes, rank 0 included.
            address: of this pod.
            store: serves the nodes.
        """
        from espalier.training.launch import LocalWorkers

        self.address = address
        self._nodes = nodes
        self._count = count
        self._store = store
        self._local = LocalWorkers(count, nodes.ranks(0, count))
        self._heard: dict[int, tuple[str, float]] = dict.fromkeys(
            range(1, nodes.count), ("", time.monotonic())
        )
        """Node -> its last beat, and when that was new."""
        self._failed_s: float | None = None
        """When a failure was first seen."""

    @property
    def on_machine(self) -> int:
        """Number of processes of each node."""
        return self._local.on_machine

    def start(self, main: WorkerMain) -> None:
        """Run `main`, which must be picklable, on ranks 1, 2, ..."""
        self._local.start(main)
        self._store.set(_ORDER, pickle.dumps((self._count, main)).hex())

    def failure(self) -> TrainingError | None:
        """Return an error for a worker that has failed; for one that was lost, if any was.

        A lost node makes other ranks fail before it is known by its silence, so that their failures
        are not told at once.
        """
        failures = [self._local.failure(), *map(self._failure_of, self._heard)]
        found = [failure for failure in failures if failure is not None]
        if lost := [failure for failure in found if isinstance(failure, LostWorkerError)]:
            return lost[0]
        if not found:
            return None
        now_s = time.monotonic()
        self._failed_s = self._failed_s or now_s
        return found[0] if now_s - self._failed_s > 1.1 * _SILENT_FOR_S else None

    def wait(self) -> None:
        """Return when all workers have ended, or one of them has not in time."""
        self._local.wait()
        until_s = time.monotonic() + _LEFT_WITHIN_S
        while time.monotonic() < until_s and self.failure() is None:
            if self._store.check([_key(index, "ended") for index in self._heard]):
                return
            time.sleep(_POLL_INTERVAL_S / 10)

    def kill(self) -> None:
        """Kill this pod's workers; the other nodes kill theirs when the store is gone."""
        self._local.kill()

    def end(self) -> None:
        """Terminate this pod's workers that still run."""
        self._local.end()

    def await_nodes(self) -> None:
        """Return when every node is there.

        Raises:
            LostWorkerError: one does not come.
        """
        until_s = time.monotonic() + _NODES_WITHIN_S
        while away := [one for one in self._heard if not self._store.check([_key(one, "beat")])]:
            if time.monotonic() > until_s:
                raise LostWorkerError(
                    f"of {self._nodes.count} nodes of this TrainJob, {away} did not reach "
                    f"{self.address}:{self._nodes.port} within {_NODES_WITHIN_S:g} s; see whether "
                    "their pods run, and whether a network policy lies between"
                )
            time.sleep(_POLL_INTERVAL_S / 10)

    def _failure_of(self, index: int) -> TrainingError | None:
        """Failure of a node, by what it says or by its silence."""
        if self._store.check([_key(index, "failure")]):
            is_lost, message = json.loads(self._store.get(_key(index, "failure")))
            return (LostWorkerError if is_lost else TrainingError)(message)
        before, since_s = self._heard[index]
        beat = self._store.get(_key(index, "beat")).decode()
        if beat != before:
            self._heard[index] = beat, time.monotonic()
        elif time.monotonic() - since_s > _SILENT_FOR_S:
            return _lost(self._nodes, index, f"it was silent for {_SILENT_FOR_S:g} s")
        return None


@contextmanager
def node_workers(count: int, device: torch.device, *, nodes: Nodes) -> Generator[NodeWorkers]:
    """Yield workers on the nodes of this TrainJob, which are ended with the block.

    Args:
        count: number of processes, including rank 0, which is this one.
        device: where they compute.
        nodes: the nodes; this pod is the first.

    Raises:
        TrainingError: the processes cannot be shared equally, or a node has too few GPUs.
        LostWorkerError: a node does not come.
    """
    from espalier.training.launch import require_gpus

    if count % nodes.count:
        raise TrainingError(
            f"training.processes={count} cannot be shared equally by kubernetes.nodes="
            f"{nodes.count}; set it to a multiple"
        )
    require_gpus(count // nodes.count, device)
    address = _own_address(nodes.address)
    with socket.create_server((address, nodes.port), backlog=nodes.count) as listener:
        store = _store(address, nodes.port, listener=listener)
    workers = NodeWorkers(nodes, count, address, store)
    workers.await_nodes()
    try:
        yield workers
    finally:
        workers.end()


def serve(nodes: Nodes) -> NoReturn:
    """Run this node's ranks for the first node, attempt after attempt, until a signal comes."""
    while True:
        with suppress(RuntimeError):  # torch has no narrower error for a store that is not there
            _serve_attempt(nodes, _store(nodes.address, nodes.port))
        time.sleep(_POLL_INTERVAL_S)


def _serve_attempt(nodes: Nodes, store: TCPStore) -> None:
    """Run the ranks of one attempt.

    Raises:
        RuntimeError: the first node is gone.
    """
    from espalier.training.launch import LocalWorkers

    workers: LocalWorkers | None = None

    def leave(number: int) -> NoReturn:
        how = f"its pod got {signal.Signals(number).name}"
        with suppress(RuntimeError):  # the first node is gone, too
            _say_failure(store, nodes.index, _lost(nodes, nodes.index, how))
        raise SystemExit(128 + number)

    if store.check([_key(nodes.index, "taken")]):  # by a process that has ended, and its ranks
        how = "its pod was started again"
        _say_failure(store, nodes.index, _lost(nodes, nodes.index, how))
    _log.info("node %d of %d waits for training", nodes.index, nodes.count)
    try:
        with on_signals(leave):
            beats = 0
            while True:
                beats += 1
                store.set(_key(nodes.index, "beat"), str(beats))
                if workers is None and _may_take(store, nodes.index):
                    count, main = pickle.loads(bytes.fromhex(store.get(_ORDER).decode()))
                    ranks = nodes.ranks(nodes.index, count)
                    _log.info("starts ranks %d to %d of %d", ranks[0], ranks[-1], count)
                    workers = LocalWorkers(count, ranks)
                    workers.start(main)
                if workers is not None:
                    if failure := workers.failure():
                        _say_failure(store, nodes.index, failure)
                    if workers.has_ended:
                        store.set(_key(nodes.index, "ended"), "")
                time.sleep(_POLL_INTERVAL_S / 2)
    finally:
        if workers is not None:
            workers.kill()
            workers.wait()


def _may_take(store: TCPStore, index: int) -> bool:
    """Whether there is an order for this node, which it takes once in an attempt."""
    taken = _key(index, "taken")
    if not store.check([_ORDER]) or store.check([taken]):
        return False
    store.set(taken, "")
    return True


def _say_failure(store: TCPStore, index: int, failure: TrainingError) -> None:
    said = json.dumps([isinstance(failure, LostWorkerError), str(failure)])
    store.set(_key(index, "failure"), said)


def _lost(nodes: Nodes, index: int, how: str) -> LostWorkerError:
    return LostWorkerError(
        f"node {index} of the {nodes.count} that train together is lost: {how}; the same command "
        "goes on from the last checkpoint"
    )


def _own_address(name: str) -> str:
    """IP address of this pod, by whose name the other nodes know it.

    Raises:
        LostWorkerError: the name is not known, which takes the cluster's DNS a moment.
    """
    until_s = time.monotonic() + _NAME_WITHIN_S
    while True:
        try:
            return socket.gethostbyname(name)
        except OSError as error:
            if time.monotonic() > until_s:
                raise LostWorkerError(
                    f"{name}, the name of this TrainJob's first node ({_ADDRESS_VARIABLE}), has no "
                    f"address after {_NAME_WITHIN_S:g} s: {error}"
                ) from error
        time.sleep(_POLL_INTERVAL_S)


def _store(address: str, port: int, *, listener: socket.socket | None = None) -> TCPStore:
    """Serve the store on the listener, or connect to it.

    Raises:
        RuntimeError: nobody answers at the address.
    """
    from torch.distributed import (
        TCPStore,  # pyright: ignore[reportPrivateImportUsage] (documented, not listed)
    )

    return TCPStore(
        address,
        port,
        is_master=listener is not None,
        timeout=_ANSWERS_WITHIN,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def _key(index: int, what: str) -> str:
    return f"node/{index}/{what}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    prepare_environment()
    serve(Nodes.of(os.environ))

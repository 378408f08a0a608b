"""Training's workers on the nodes of a TrainJob, whose pods all run the same command.

The first node's step trains, with ranks in its own pod and in those of the others. Each of the
others runs this module instead (`serve`): it waits for the first node at the address that Kubeflow
Trainer gives to all, starts its ranks, and says when one of them has failed. Where the first node
is lost, it waits for the next attempt of it.

They speak through a key-value store of torch, which is neither encrypted nor authenticated: a
network policy (`k8s/trainer`) keeps others out. What the nodes are to run is signed with a key of
the workspace, which they share and no sandbox has.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import pickle
import secrets
import signal
import socket
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from espalier.cluster.signals import on_signals
from espalier.determinism import prepare_environment
from espalier.records import LostWorkerError, TrainingError, whole_file

if TYPE_CHECKING:
    import torch
    from torch.distributed import (
        TCPStore,  # pyright: ignore[reportPrivateImportUsage] (documented, not listed)
    )

    from espalier.training.launch import LocalWorkers, WorkerMain

NODES_VARIABLE = "PET_NNODES"
"""Number of a TrainJob's nodes; Trainer sets this and the next three, which torchrun also reads
(pkg/constants/constants.go)."""
_INDEX_VARIABLE = "PET_NODE_RANK"
_ADDRESS_VARIABLE = "PET_MASTER_ADDR"
_PORT_VARIABLE = "PET_MASTER_PORT"
KEY_VARIABLE = "ESPALIER_NODES_KEY"
"""File of the shared workspace with the key of an attempt; the step's runner names it."""

_NODES_WITHIN_S = 900.0
"""How long the first node waits for the others, whose pods may wait for a node pool to grow."""
_NAME_WITHIN_S = 120.0
"""How long the name of this pod may take to lead here: a cluster's DNS remembers the former pod."""
_ANSWERS_WITHIN = timedelta(seconds=10)
_SILENT_FOR_S = 20.0
"""A node that has said nothing for so long is lost. 1.1 times this must be below
`launch._FAILURE_KNOWN_WITHIN_S`."""
_FIRST_SILENT_FOR_S = 60.0
"""A first node that has not answered for so long is lost, machine and all."""
_LEFT_WITHIN_S = 60.0
_POLL_INTERVAL_S = 1.0
_ORDER = "order"
"""Key of what the ranks run: signature, then number of ranks and their function, pickled."""

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
    key: Path = Path()
    """File with the key that signs what the nodes run."""

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
                int(environment[_INDEX_VARIABLE]),
                environment[_ADDRESS_VARIABLE],
                int(environment[_PORT_VARIABLE]),
                Path(environment.get(KEY_VARIABLE, "")),
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
        """Index of a node -> its newest beat, and the time at which that was first seen."""
        self._failed_s: float | None = None
        """When a failure was first seen."""

    @property
    def on_machine(self) -> int:
        """Number of processes of each node."""
        return self._local.on_machine

    def start(self, main: WorkerMain) -> None:
        """Run `main`, which must be picklable, on ranks 1, 2, ..."""
        self._local.start(main)
        key, work = secrets.token_bytes(32), pickle.dumps((self._count, main))
        self._nodes.key.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(self._nodes.key) as draft:
            draft.touch(mode=0o600)
            draft.write_bytes(key)
        self._store.set(_ORDER, (_signature(key, work) + work).hex())

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
        count: number of processes, a multiple of the nodes; includes rank 0, which is this one.
        device: where they compute.
        nodes: the nodes; this pod is the first.

    Raises:
        TrainingError: this node has too few GPUs.
        LostWorkerError: a node does not come.
    """
    from espalier.training.launch import require_gpus

    require_gpus(count // nodes.count, device)
    with _listening(nodes) as listener:
        address = listener.getsockname()[0]
        store = _store(address, nodes.port, listener=listener)
    workers = NodeWorkers(nodes, count, address, store)
    workers.await_nodes()
    try:
        yield workers
    finally:
        workers.end()


def serve(nodes: Nodes) -> NoReturn:
    """Run this node's ranks for the first node, attempt after attempt, until a signal comes."""
    from torch.distributed import DistError

    while True:
        time.sleep(_POLL_INTERVAL_S)
        try:
            store = _store(nodes.address, nodes.port)
        except DistError:  # nobody is there yet
            continue
        _log.info("node %d of %d waits for training", nodes.index, nodes.count)
        attempt = _Attempt(nodes, store)
        try:
            attempt.serve()
        except DistError as error:
            _log.info("the first node is gone: %s", str(error).partition("\n")[0])
        finally:
            attempt.end()


class _Attempt:
    """This node's part in one attempt of the first node."""

    def __init__(self, nodes: Nodes, store: TCPStore) -> None:
        self._nodes = nodes
        self._store = store
        self._workers: LocalWorkers | None = None
        self._answered_s = time.monotonic()

    def serve(self) -> NoReturn:
        """Run the ranks until the first node is gone.

        Raises:
            DistError: it is.
        """
        with self.watched(), on_signals(self._leave):
            if self._store.check([self._key("taken")]):
                # an earlier process with this node's index took the order; its ranks have ended
                self._say_failure(_lost(self._nodes, self._nodes.index, "its pod started again"))
            beats = 0
            while True:
                beats += 1
                self._store.set(self._key("beat"), str(beats))
                if self._workers is None and (order := self._order()) is not None:
                    self._start(*order)
                if self._workers is not None:
                    if failure := self._workers.failure():
                        self._say_failure(failure)
                    if self._workers.has_ended:
                        self._store.set(self._key("ended"), "")
                self._answered_s = time.monotonic()
                time.sleep(_POLL_INTERVAL_S / 2)

    def end(self) -> None:
        """Kill the ranks."""
        self._kill()
        if self._workers is not None:
            self._workers.wait()

    def _order(self) -> tuple[int, WorkerMain] | None:
        """Return the number of ranks and the function that they run; None if there are none to run.

        A node takes an order once in an attempt: its ranks cannot join a second time.
        """
        if not self._store.check([_ORDER]) or self._store.check([self._key("taken")]):
            return None
        given = bytes.fromhex(self._store.get(_ORDER).decode())
        size = hashlib.sha256().digest_size
        signature, work = given[:size], given[size:]
        try:
            key = self._nodes.key.read_bytes()
        except FileNotFoundError:  # a shared file system may show it later
            key = b""
        if not key or not hmac.compare_digest(signature, _signature(key, work)):
            _log.warning("an order is not signed with the key in %s", self._nodes.key)
            return None
        self._store.set(self._key("taken"), "")
        return pickle.loads(work)

    def _start(self, count: int, main: WorkerMain) -> None:
        from espalier.training.launch import LocalWorkers

        ranks = self._nodes.ranks(self._nodes.index, count)
        _log.info("starts ranks %d to %d of %d", ranks[0], ranks[-1], count)
        self._workers = LocalWorkers(count, ranks)
        self._workers.start(main)

    def _leave(self, number: int) -> NoReturn:
        from torch.distributed import DistError

        how = f"its pod got {signal.Signals(number).name}"
        with suppress(DistError):  # the first node is gone, too
            self._say_failure(_lost(self._nodes, self._nodes.index, how))
        raise SystemExit(128 + number)

    def _say_failure(self, failure: TrainingError) -> None:
        said = json.dumps([isinstance(failure, LostWorkerError), str(failure)])
        self._store.set(self._key("failure"), said)

    @contextmanager
    def watched(self) -> Generator[None]:
        """Exit if the first node does not answer: a machine that is gone closes no connection.

        Neither a signal nor an exception interrupts a request to torch's store.
        """
        from espalier.rollout.waits import exit_if_hung

        with exit_if_hung(self._overdue, every_s=_POLL_INTERVAL_S, before_exit=self._kill):
            yield

    def _overdue(self) -> str | None:
        if time.monotonic() - self._answered_s <= _FIRST_SILENT_FOR_S:
            return None
        return f"the first node has not answered for {_FIRST_SILENT_FOR_S:g} s"

    def _kill(self) -> None:
        if self._workers is not None:
            self._workers.kill()

    def _key(self, what: str) -> str:
        return _key(self._nodes.index, what)


def _signature(key: bytes, work: bytes) -> bytes:
    return hmac.digest(key, work, "sha256")


def _lost(nodes: Nodes, index: int, how: str) -> LostWorkerError:
    return LostWorkerError(
        f"node {index} of the {nodes.count} that train together is lost: {how}; the same command "
        "goes on from the last checkpoint"
    )


def _listening(nodes: Nodes) -> socket.socket:
    """Listen on the address that the other nodes know this pod by, and on no other.

    Raises:
        LostWorkerError: the name does not lead to this pod in time.
    """
    until_s = time.monotonic() + _NAME_WITHIN_S
    while True:
        try:
            address = socket.gethostbyname(nodes.address)
            return socket.create_server((address, nodes.port), backlog=nodes.count)
        except OSError as error:
            if time.monotonic() > until_s:
                raise LostWorkerError(
                    f"{nodes.address}:{nodes.port}, the first node of this TrainJob "
                    f"({_ADDRESS_VARIABLE}), is no address of this pod after {_NAME_WITHIN_S:g} s: "
                    f"{error}"
                ) from error
        time.sleep(_POLL_INTERVAL_S)


def _store(address: str, port: int, *, listener: socket.socket | None = None) -> TCPStore:
    """Open the store: as its server if there is a listener, else as a client.

    Raises:
        DistError: nobody answers at the address.
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

"""Training's workers as Ray actors on the nodes of a cluster.

Each actor reserves one GPU, or one of a node's CPU units where training computes on CPUs. Ray ends
the actors and frees the reservations when this process ends, however it ends.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from espalier.records import LostWorkerError, TrainingError
from espalier.training.launch import lost_worker_message

if TYPE_CHECKING:
    import torch

    from espalier.training.launch import WorkerMain

_STARTED_WITHIN_S = 300.0
"""Time limit for the start: reserved GPUs or CPUs may have to become free; a process starts in
seconds."""
_LEFT_WITHIN_S = 60.0
_DIED = 3
"""Severity of a process that died; an error that a worker raised has less."""


class _Actor:
    """One worker process."""

    def node(self) -> str:
        """Return the id of its node."""
        return ray.get_runtime_context().get_node_id()

    def serve(self, environment: Mapping[str, str], main: bytes, rank: int) -> None:
        """Run the pickled main function; Ray shows the process only its own GPU, as number 0."""
        # before unpickling, which imports torch: torch reads some variables at its first import
        os.environ.update(environment)
        pickle.loads(main)(rank, 0)


class _PlacedActor(NamedTuple):
    actor: Any
    address: str


class RayWorkers:
    """Actors on nodes; ranks fill one node after the other, beginning with this process's node."""

    on_machine = 1
    """Each has cores of its own, as far as Ray is told."""

    def __init__(
        self, address: str, placed: Sequence[_PlacedActor], environment: Mapping[str, str]
    ) -> None:
        self.address = address
        self._placed = placed
        self._environment = environment
        self._serving: dict[Any, int] = {}

    def start(self, main: WorkerMain) -> None:
        """Run `main`, which must be picklable, on ranks 1, 2, ..."""
        pickled = pickle.dumps(main)
        for rank, placed in enumerate(self._placed, start=1):
            serving = placed.actor.serve.remote(self._environment, pickled, rank)
            self._serving[serving] = rank

    def failure(self) -> TrainingError | None:
        """Return an error that names the rank that died, not its disconnected peers."""
        lost = [(*_fault(serving), rank) for serving, rank in self._ended(timeout_s=0)]
        severity, how, rank = max(lost, default=(0, "", 0), key=lambda fault: fault[0])
        if not severity:
            return None
        where = self._placed[rank - 1].address
        message = lost_worker_message(rank, len(self._placed) + 1, how, where=where)
        return (LostWorkerError if severity == _DIED else TrainingError)(message)

    def wait(self) -> None:
        """Return when all workers have ended; Ray ends those that do not end in time."""
        self._ended(timeout_s=_LEFT_WITHIN_S)

    def kill(self) -> None:
        """Kill all workers at once, stopped ones as well, without waiting for their end."""
        for placed in self._placed:
            ray.kill(placed.actor)

    def _ended(self, *, timeout_s: float) -> list[tuple[Any, int]]:
        serving = list(self._serving)
        ended, _ = ray.wait(serving, num_returns=len(serving), timeout=timeout_s)
        return [(one, self._serving[one]) for one in ended]


@contextmanager
def ray_workers(
    count: int, device: torch.device, *, environment: Mapping[str, str]
) -> Generator[RayWorkers]:
    """Yield workers on the nodes of the RAY_ADDRESS cluster, which are ended with the block.

    Args:
        count: number of processes, including rank 0, which already has its own GPU or CPU.
        device: decides whether each worker reserves a GPU or a CPU.
        environment: variables to set in the workers.

    Raises:
        TrainingError: there is no cluster, or it has too few GPUs or CPUs, or none gets free.
    """
    kind = "GPU" if device.type == "cuda" else "CPU"
    with connected_to_ray():
        _require(count, kind)
        # SPREAD: the processes of a node share its memory and its network
        places = placement_group([{kind: 1.0}] * (count - 1), strategy="SPREAD")
        actors = [_actor(places, number, kind) for number in range(count - 1)]
        try:
            yield RayWorkers(*_placed(actors, kind), environment)
        finally:
            for actor in actors:
                ray.kill(actor)
            remove_placement_group(places)


@contextmanager
def connected_to_ray() -> Generator[None]:
    """Connect this process to the RAY_ADDRESS cluster for the block, unless it is connected.

    Raises:
        TrainingError: there is no cluster.
    """
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address="auto")
    except ConnectionError as error:
        raise TrainingError(
            f"training found no Ray cluster ({error}); it needs one for the nodes of a RayJob and "
            "for training.rollout_workers: start it on a node of a cluster, with RAY_ADDRESS set"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _require(count: int, kind: str) -> None:
    offered = [int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]]
    if sum(offered) < count:
        nodes = sum(1 for number in offered if number)
        raise TrainingError(
            f"training.processes={count} asks for {count} {kind}s, one each, and the Ray cluster "
            f"has {sum(offered)} on {nodes} nodes; lower it, or raise kubernetes.nodes"
        )


def _actor(places: PlacementGroup, number: int, kind: str) -> Any:  # noqa: ANN401 (Ray's is untyped)
    options: dict[str, Any] = {
        "num_cpus": int(kind == "CPU"),
        "num_gpus": int(kind == "GPU"),
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            places, placement_group_bundle_index=number
        ),
        "max_restarts": 0,
    }
    return ray.remote(**options)(_Actor).remote()


def _placed(actors: Sequence[Any], kind: str) -> tuple[str, list[_PlacedActor]]:
    """Return this node's address, and the actors with theirs, in the order of their ranks.

    Raises:
        TrainingError: an actor was not placed in time, or ended at once.
    """
    try:
        nodes = ray.get([actor.node.remote() for actor in actors], timeout=_STARTED_WITHIN_S)
    except (GetTimeoutError, RayActorError) as error:
        free = ray.available_resources().get(kind, 0)
        raise TrainingError(
            f"{len(actors)} processes were to start on the nodes of the Ray cluster and did not "
            f"within {_STARTED_WITHIN_S:g} s ({type(error).__name__}); of its {kind}s {free:g} are "
            "free, and this process has its own already"
        ) from error
    here = ray.get_runtime_context().get_node_id()
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    pairs = sorted(zip(nodes, actors, strict=True), key=lambda pair: (pair[0] != here, pair[0]))
    return addresses[here], [_PlacedActor(actor, addresses[node]) for node, actor in pairs]


def _fault(serving: Any) -> tuple[int, str]:  # noqa: ANN401 (Ray's is untyped)
    """Return severity (0: no fault) and description of a worker's end."""
    try:
        ray.get(serving)
    except RayTaskError as error:
        said = str(error.cause).partition("\n")[0]
        # torch raises RuntimeError for a broken connection: another rank is probably the cause
        return 1 if isinstance(error.cause, RuntimeError) else 2, (
            f"{type(error.cause).__name__}: {said}, see its log lines above"
        )
    except RayActorError:
        return _DIED, "its process died: killed, out of memory, or the node is gone"
    return 0, ""

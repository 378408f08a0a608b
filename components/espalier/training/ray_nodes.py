"""Training's door to Ray: the other processes of a team, on the nodes of a cluster around this one.

Each is an actor with a place of its own: a GPU, or where training computes on CPUs one of the
places that a node offers as CPUs. Ray ends the actors and gives their places back when this process
ends, however it ends.
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

from espalier.records import TrainingError
from espalier.training.companions import told_loss

if TYPE_CHECKING:
    import torch

    from espalier.training.companions import Duty

_STARTED_WITHIN_S = 300.0
"""Places that others hold may become free; a process starts in seconds."""
_LEFT_WITHIN_S = 60.0


class _Rank:
    """A process on some node."""

    def node(self) -> str:
        """Id of the node that it was placed on."""
        return ray.get_runtime_context().get_node_id()

    def serve(self, environment: Mapping[str, str], duty: bytes, rank: int) -> None:
        """Do a duty; Ray shows the process its own GPU alone, which is number 0 then."""
        # torch reads some of it when it is first imported, as unpickling the duty does
        os.environ.update(environment)
        pickle.loads(duty)(rank, 0)


class _Placed(NamedTuple):
    actor: Any
    address: str


class RayCompanions:
    """Actors on nodes; ranks go round a node before the next begins, this process's own first."""

    share_cores = False

    def __init__(
        self, address: str, placed: Sequence[_Placed], environment: Mapping[str, str]
    ) -> None:
        self.address = address
        self._placed = placed
        self._environment = environment
        self._serving: dict[Any, int] = {}

    def start(self, duty: Duty) -> None:
        """See `Companions`."""
        pickled = pickle.dumps(duty)
        for rank, placed in enumerate(self._placed, start=1):
            serving = placed.actor.serve.remote(self._environment, pickled, rank)
            self._serving[serving] = rank

    def loss(self) -> str | None:
        """See `Companions`; who died is named before whom that has broken off."""
        lost = [(*_fault(serving), rank) for serving, rank in self._ended(timeout_s=0)]
        severity, said, rank = max(lost, default=(0, "", 0), key=lambda fault: fault[0])
        if not severity:
            return None
        where = self._placed[rank - 1].address
        return told_loss(rank, len(self._placed) + 1, said, where=where)

    def wait(self) -> None:
        """See `Companions`; one that does not end by itself is ended by Ray."""
        self._ended(timeout_s=_LEFT_WITHIN_S)

    def _ended(self, *, timeout_s: float) -> list[tuple[Any, int]]:
        serving = list(self._serving)
        ended, _ = ray.wait(serving, num_returns=len(serving), timeout=timeout_s)
        return [(one, self._serving[one]) for one in ended]


@contextmanager
def ray_companions(
    count: int, device: torch.device, *, environment: Mapping[str, str]
) -> Generator[RayCompanions]:
    """Companions on the nodes of the cluster that RAY_ADDRESS names, ended with the block.

    Args:
        count: of processes, this one included: it has its place already.
        device: a GPU each, or a CPU.
        environment: variables that they get.

    Raises:
        TrainingError: no cluster, too few places in it, or none that becomes free.
    """
    kind = "GPU" if device.type == "cuda" else "CPU"
    try:
        ray.init(address="auto")
    except ConnectionError as error:
        raise TrainingError(f"training on several nodes finds no Ray cluster: {error}") from error
    try:
        _require(count, kind)
        # evenly, as the processes of a node share its memory and its network
        places = placement_group([{kind: 1.0}] * (count - 1), strategy="SPREAD")
        actors = [_actor(places, number, kind) for number in range(count - 1)]
        try:
            yield RayCompanions(*_placed(actors, kind), environment)
        finally:
            for actor in actors:
                ray.kill(actor)
            remove_placement_group(places)
    finally:
        ray.shutdown()


def _require(count: int, kind: str) -> None:
    offered = [int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]]
    if sum(offered) < count:
        nodes = sum(1 for number in offered if number)
        raise TrainingError(
            f"training.processes={count} asks for {count} {kind}s, one each, and the Ray cluster "
            f"has {sum(offered)} on {nodes} nodes; lower it, or raise kubernetes.ray.workers"
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
    return ray.remote(**options)(_Rank).remote()


def _placed(actors: Sequence[Any], kind: str) -> tuple[str, list[_Placed]]:
    """The address of this node, and every actor's, in the order of their ranks.

    Raises:
        TrainingError: one has no place in time, or ended at once.
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
    return addresses[here], [_Placed(actor, addresses[node]) for node, actor in pairs]


def _fault(serving: Any) -> tuple[int, str]:  # noqa: ANN401 (Ray's is untyped)
    """How grave the end of a duty is, 0 where it is none, and how it came to it."""
    try:
        ray.get(serving)
    except RayTaskError as error:
        said = str(error.cause).partition("\n")[0]
        # a connection that breaks is a RuntimeError: the others' way to notice who is gone
        return 1 if isinstance(error.cause, RuntimeError) else 2, (
            f"{type(error.cause).__name__}: {said}, see its lines above"
        )
    except RayActorError:
        return 3, "its process died: killed, out of memory, or the node is gone"
    return 0, ""

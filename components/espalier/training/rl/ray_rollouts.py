"""Rollout workers as Ray actors, each with an engine, environments and sandboxes of its own.

WorkerGroup (the learner's) -> _Actor (on a node) -> RolloutWorker (a thread) -> PolicyReplica

To the learner a group is one worker. Draws, their names and the ledger stay with the learner: which
worker samples a group changes nothing in it, and the groups of a lost worker begin again on others
under the same names. Ray starts as many actors as the nodes have places for, and the others when
nodes come.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import ray
import torch
from ray.exceptions import RayError, RayTaskError
from ray.util import get_node_ip_address
from torch import Tensor

from espalier.determinism import prepared_environment
from espalier.records import HungError, TrainingError
from espalier.rollout.roller import RolloutCounts
from espalier.training.ray_workers import connected_to_ray
from espalier.training.rl.asynchronous import GroupOrder, SampledGroup
from espalier.training.rl.engines import LocalWorker, OpensWorker

_PLACED_WITHIN_S = 300.0
"""How long groups wait while no worker has a place: reserved GPUs or CPUs may have to become free,
and a lost node may have to be replaced."""
_CLOSES_WITHIN_S = 60.0
_BEATS_EVERY_S = 1.0
_MOST_LOSSES = 3
"""Workers that may be lost one after the other with the same group, or while none is sampled."""

_log = logging.getLogger(__name__)


class _Setup(NamedTuple):
    """What an actor is opened with."""

    environment: Mapping[str, str]
    threads: int
    is_deterministic: bool
    opens_worker: bytes
    """Pickled; it is unpickled after the environment variables are set."""


class _Actor:
    """One rollout worker; its methods run in threads, by the groups that `_CONCURRENCY` names."""

    def __init__(self) -> None:
        self._exits = ExitStack()
        self._local: LocalWorker | None = None

    def place(self) -> str:
        """Return the address of its node."""
        return get_node_ip_address()

    def open(self, setup: _Setup) -> None:
        """Load policy and environments."""
        os.environ.update(setup.environment)
        torch.set_num_threads(setup.threads)
        torch.use_deterministic_algorithms(mode=setup.is_deterministic)
        self._local = self._exits.enter_context(pickle.loads(setup.opens_worker)())

    @ray.method(concurrency_group="orders")
    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Sample groups that are ordered from now on under `weights`."""
        self._opened.worker.publish(version, weights)

    @ray.method(concurrency_group="orders")
    def order(self, order: GroupOrder) -> None:
        """Begin a group."""
        self._opened.worker.order(order)

    @ray.method(concurrency_group="groups")
    def take(self) -> list[SampledGroup]:
        """Return what is finished, as soon as a group is.

        Raises:
            HungError: no episode of this worker made progress within the limit.
        """
        worker = self._opened.worker
        first = worker.take(wait=True)
        assert first is not None, "a worker that is waited for gives a group"
        groups = [first]
        while (group := worker.take(wait=False)) is not None:
            groups.append(group)
        return groups

    @ray.method(concurrency_group="beats")
    def beat(self) -> RolloutCounts:
        """Return a moment later what was sampled so far, as a sign of life."""
        time.sleep(_BEATS_EVERY_S)
        return self._opened.counts

    def close(self) -> RolloutCounts:
        """End the groups in flight, sandboxes and environments; return what was sampled."""
        self._exits.close()
        return self._opened.counts

    @property
    def _opened(self) -> LocalWorker:
        assert self._local is not None, "it was opened"
        return self._local


# one thread each, so that orders reach the worker after the weights that were published before
_CONCURRENCY = {"orders": 1, "groups": 1, "beats": 1}


class _Member:
    """The learner's side of one actor."""

    def __init__(self, number: int, actor: Any) -> None:  # noqa: ANN401 (Ray's is untyped)
        self.number = number
        self.actor = actor
        self.address = ""
        """Address of its node; empty while Ray has no place for it."""
        self.is_ready = False
        self.orders: dict[int, GroupOrder] = {}
        """Orders that it has not answered, by draw."""
        self.counts = RolloutCounts()
        self.calls: dict[Any, str] = {}
        """Calls that have not returned, with the method's name."""
        self._asked_s = time.monotonic()
        self.call("place")

    def call(self, method: str, *arguments: object) -> None:
        """Call a method of the actor; its answer is found among `calls`."""
        self.calls[getattr(self.actor, method).remote(*arguments)] = method
        if method in ("open", "beat"):
            self._asked_s = time.monotonic()

    @property
    def episodes(self) -> int:
        """Number of episodes in the orders that it has not answered."""
        return sum(len(order.names) for order in self.orders.values())

    @property
    def silent_s(self) -> float:
        """Seconds since the call that it has to answer next; 0 while it has no place."""
        return time.monotonic() - self._asked_s if self.address else 0.0

    @property
    def name(self) -> str:
        """Its number and node, for messages."""
        return f"rollout worker {self.number} on node {self.address or '(no place yet)'}"


class WorkerGroup:
    """Rollout workers on the nodes of a Ray cluster, which come and go."""

    def __init__(
        self,
        count: int,
        opens_worker: OpensWorker,
        *,
        device: torch.device,
        most_episodes: int,
        limit_s: float,
    ) -> None:
        """Set up a group; nothing runs before `start`.

        Args:
            count: most workers that run at the same time.
            opens_worker: opens the worker in an actor; can be pickled.
            device: decides whether each worker reserves a GPU or a CPU.
            most_episodes: most episodes that one worker has at the same time; other groups wait
                for the next worker that has room.
            limit_s: how long a worker may not answer; then it counts as lost.
        """
        self.version: int | None = None
        """Version of the weights for groups that begin now; None before the first `publish`."""
        self._count = count
        self._opens_worker = pickle.dumps(opens_worker)
        self._kind = "GPU" if device.type == "cuda" else "CPU"
        self._most_episodes = most_episodes
        self._limit_s = limit_s
        self._exits = ExitStack()
        self._members: list[_Member] = []
        self._hired = 0
        self._weights: Any = None
        """Reference to the newest weights in Ray's object store."""
        self._waiting: deque[GroupOrder] = deque()
        """Orders that no worker has."""
        self._finished: deque[SampledGroup] = deque()
        self._losses: Counter[int] = Counter()
        """Number of workers lost with an order, by its draw."""
        self._losses_in_a_row = 0
        self._counts_of_lost = RolloutCounts()

    @property
    def counts(self) -> RolloutCounts:
        """Return what all workers have sampled so far, also those that were lost."""
        return RolloutCounts.total([self._counts_of_lost, *(one.counts for one in self._members)])

    def start(self) -> None:
        """Ask Ray for the workers; they sample after the first `publish`.

        Raises:
            TrainingError: there is no Ray cluster.
        """
        self._exits.enter_context(connected_to_ray())
        for _ in range(self._count):
            self._hire()

    def publish(self, version: int, weights: Mapping[str, Tensor], /) -> None:
        """Sample groups that begin from now on under `weights`, which must not change any more."""
        self.version, self._weights = version, ray.put(weights)
        for member in self._members:
            if member.is_ready:
                member.call("publish", version, self._weights)

    def order(self, order: GroupOrder, /) -> None:
        """Sample a group; `take` returns it when it is done."""
        self._waiting.append(order)
        self._hand_out()

    def take(self, *, wait: bool) -> SampledGroup | None:
        """Return a finished group; None if there is none and `wait` is false.

        Raises:
            HungError: no episode of a worker made progress within the limit.
            TrainingError: no worker has a place, or workers are lost again and again.
            Exception: a worker's failure.
        """
        placed_s = time.monotonic()
        while True:
            self._look(timeout_s=_BEATS_EVERY_S if wait and not self._finished else 0.0)
            if self._finished:
                return self._finished.popleft()
            if not wait:
                return None
            if any(member.address for member in self._members):
                placed_s = time.monotonic()
            elif time.monotonic() - placed_s > _PLACED_WITHIN_S:
                free = ray.available_resources().get(self._kind, 0)
                raise TrainingError(
                    f"none of training.rollout_workers={self._count} found a place within "
                    f"{_PLACED_WITHIN_S:g} s: each needs one {self._kind}, and of those of the Ray "
                    f"cluster {free:g} are free. Add nodes; the same command goes on from the last "
                    "checkpoint"
                )

    def close(self) -> None:
        """End the groups in flight, and all workers; a second call does nothing."""
        ready = [member for member in self._members if member.is_ready]
        closing = {member.actor.close.remote(): member for member in ready}
        if closing:
            closed, _ = ray.wait(list(closing), num_returns=len(closing), timeout=_CLOSES_WITHIN_S)
            for one in closed:
                with suppress(RayError):  # it is lost, or fails: its last counts stay
                    closed_with: Any = ray.get(one)
                    closing[one].counts = closed_with
        for member in self._members:
            ray.kill(member.actor)
            member.is_ready = False
        self._exits.close()

    def _hire(self) -> None:
        """Ask Ray for one more actor; it waits for a place if there is none."""
        self._hired += 1
        options: dict[str, Any] = {
            "num_cpus": int(self._kind == "CPU"),
            "num_gpus": int(self._kind == "GPU"),
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
            "concurrency_groups": _CONCURRENCY,
        }
        self._members.append(_Member(self._hired, ray.remote(**options)(_Actor).remote()))

    def _look(self, *, timeout_s: float) -> None:
        """Wait until a call returns, at most `timeout_s`; take all answers and hand out orders."""
        calls = {call: member for member in self._members for call in member.calls}
        answered, _ = ray.wait(list(calls), timeout=timeout_s)
        if answered:
            answered, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
        for call in answered:
            if calls[call] in self._members:  # not lost by another of its calls
                self._answer(calls[call], call)
        for member in [one for one in self._members if one.silent_s > self._limit_s]:
            self._lose(member, f"it has not answered for {self._limit_s:g} s")
        self._hand_out()

    def _answer(self, member: _Member, call: Any) -> None:  # noqa: ANN401 (Ray's is untyped)
        method = member.calls.pop(call)
        try:
            answer: Any = ray.get(call)
        except RayTaskError as error:
            if isinstance(error.cause, (HungError, TrainingError)):
                raise type(error.cause)(f"{member.name}: {error.cause}") from error
            raise error.cause from error
        except RayError as error:  # the actor's process or node, or what was on it
            self._lose(member, type(error).__name__)
            return
        match method:
            case "place":
                member.address = answer
                member.call("open", self._setup())
            case "open":
                member.is_ready = True
                member.call("beat")
                if self._weights is not None:
                    member.call("publish", self.version, self._weights)
            case "beat":
                member.counts = answer
                member.call("beat")
            case "take":
                self._keep(member, answer)
            case _:  # orders and weights have no answer
                pass

    def _keep(self, member: _Member, groups: Sequence[SampledGroup]) -> None:
        for group in groups:
            del member.orders[group.draw]
            self._losses.pop(group.draw, None)
            self._finished.append(group)
        self._losses_in_a_row = 0
        if member.orders:
            member.call("take")

    def _setup(self) -> _Setup:
        return _Setup(
            environment=prepared_environment(),
            threads=torch.get_num_threads(),
            is_deterministic=torch.are_deterministic_algorithms_enabled(),
            opens_worker=self._opens_worker,
        )

    def _hand_out(self) -> None:
        """Give waiting orders to the workers with the fewest episodes."""
        ready = [member for member in self._members if member.is_ready]
        while self._waiting and ready:
            member = min(ready, key=lambda one: one.episodes)
            order = self._waiting[0]
            if member.orders and member.episodes + len(order.names) > self._most_episodes:
                return
            self._waiting.popleft()
            member.call("order", order)
            if not member.orders:
                member.call("take")
            member.orders[order.draw] = order

    def _lose(self, member: _Member, why: str) -> None:
        """Put another worker in the place of one that is lost, and its orders before the others.

        Raises:
            TrainingError: a group has lost too many workers, or too many are lost in a row.
        """
        _log.warning(
            "%s is lost (%s); its %d groups begin again on others",
            member.name,
            why,
            len(member.orders),
        )
        ray.kill(member.actor)
        self._members.remove(member)
        self._counts_of_lost = RolloutCounts.total((self._counts_of_lost, member.counts))
        self._losses_in_a_row += 1
        self._losses.update(list(member.orders))  # a mapping would add its values
        self._waiting.extendleft(reversed(member.orders.values()))
        often = [
            order for draw, order in member.orders.items() if self._losses[draw] > _MOST_LOSSES
        ]
        if often or self._losses_in_a_row > _MOST_LOSSES * self._count:
            told = (
                f"task {often[0].task.task_id} was played by {_MOST_LOSSES + 1} rollout workers "
                "that were lost"
                if often
                else f"{self._losses_in_a_row} rollout workers were lost before any group was done"
            )
            raise TrainingError(
                f"{told}, the last of them {member.name}: {why}. See their log lines above, and "
                "whether the nodes have enough memory; the same command goes on from the last "
                "checkpoint"
            )
        self._hire()

"""The learner's side of rollout workers, over a stand-in for Ray whose actors answer at once."""

from types import SimpleNamespace

import pytest
import torch
from ray.exceptions import ActorDiedError

from espalier.records import TrainingError
from espalier.rollout.roller import RolloutCounts
from espalier.training import ray_workers
from espalier.training.rl import ray_rollouts
from espalier.training.rl.asynchronous import GroupOrder, OrderingRoller, SampledGroup
from espalier.training.rl.ray_rollouts import WorkerGroup
from tests.factories.training import make_task

TASKS = [make_task(f"name{number}") for number in range(8)]


def answered(order):
    return SampledGroup(order.draw, 0, list(order.names), None, passed_screening=True)


class Call:
    def __init__(self, actor, method, arguments):
        self.actor, self.method, self.arguments = actor, method, arguments


class Actor:
    """Answers all its orders at once; dies when it is asked for groups, if it is told to."""

    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        self.is_killed = False
        self.got = []
        self._orders = []

    def __getattr__(self, method):
        return SimpleNamespace(remote=lambda *arguments: self._called(method, arguments))

    def _called(self, method, arguments):
        if method in ("publish", "order"):
            self.got.append((method, arguments[0]))
        if method == "order":
            self._orders.append(arguments[0])
        return Call(self, method, arguments)

    def is_answered(self, method):
        if method == "take":
            return self.cluster.groups_end
        return method != "place" or self.number < self.cluster.places

    def answer(self, method):
        if method == "take" and self.number in self.cluster.dying:
            raise ActorDiedError
        if method == "take":
            ended, self._orders = self._orders, []
            return [
                SampledGroup(one.draw, 0, list(one.names), None, passed_screening=True)
                for one in ended
            ]
        return {"place": "a-node", "beat": RolloutCounts(tokens=5), "close": RolloutCounts()}.get(
            method
        )


class Cluster:
    """Ray, as far as it is asked."""

    def __init__(self):
        self.actors = []
        self.places, self.dying = 99, ()
        self.groups_end = True

    def remote(self, **_options):
        def made():
            self.actors.append(Actor(self, len(self.actors)))
            return self.actors[-1]

        return lambda _: SimpleNamespace(remote=made)

    def put(self, weights):
        return weights

    def wait(self, calls, *, num_returns=1, timeout):
        ready = [call for call in calls if call.actor.is_answered(call.method)]
        return ready[:num_returns], ready[num_returns:]

    def get(self, call):
        return call.actor.answer(call.method)

    def kill(self, actor):
        actor.is_killed = True

    def is_initialized(self):
        return True

    def available_resources(self):
        return {"CPU": 0.0}


@pytest.fixture
def cluster(monkeypatch):
    cluster = Cluster()
    for module in (ray_rollouts, ray_workers):
        monkeypatch.setattr(module, "ray", cluster)
    return cluster


def started(count, most_episodes=256):
    group = WorkerGroup(
        count, dict, device=torch.device("cpu"), most_episodes=most_episodes, limit_s=600
    )
    group.start()
    group.publish(0, {})
    return group


def order(draw, size=4):
    return GroupOrder(draw, TASKS[draw], tuple(f"{draw}:{n}" for n in range(size)), 1.0)


def test_a_worker_has_the_newest_weights_before_its_first_group(cluster):
    cluster.places = 0
    group = started(1)
    group.publish(3, {})
    group.order(order(0))
    assert group.take(wait=False) is None
    cluster.places = 1
    assert group.take(wait=True).draw == 0
    assert [
        (method, of if method == "publish" else of.draw) for method, of in cluster.actors[0].got
    ] == [
        ("publish", 3),
        ("order", 0),
    ]


def test_groups_without_room_wait_for_the_next_worker(cluster):
    cluster.places, cluster.groups_end = 1, False
    group = started(2, most_episodes=8)
    for draw in range(4):
        group.order(order(draw))
    for _ in range(3):
        assert group.take(wait=False) is None
    assert sum(method == "order" for method, _ in cluster.actors[0].got) == 2
    cluster.places = 2
    for _ in range(3):
        assert group.take(wait=False) is None
    cluster.groups_end = True
    assert sorted(group.take(wait=True).draw for _ in range(4)) == [0, 1, 2, 3]
    assert sum(method == "order" for method, _ in cluster.actors[1].got) == 2
    assert group.counts.tokens == 10


def test_orders_of_a_lost_worker_are_answered_once(cluster, caplog):
    cluster.dying = (0,)
    group = started(1)
    rolled = OrderingRoller(group).roll_out(TASKS[:3], samples=2, temperature=1.0, seed=7)
    assert rolled == [f"7:{episode}" for episode in range(6)]
    assert "rollout worker 1 on node a-node is lost (ActorDiedError); its 3 groups" in caplog.text
    assert [actor.is_killed for actor in cluster.actors] == [True, False]
    group.close()
    assert cluster.actors[1].is_killed


def test_a_task_that_loses_every_worker_ends_the_run(cluster):
    cluster.dying = range(99)
    group = started(4)
    group.order(order(5))
    with pytest.raises(TrainingError, match=f"task {TASKS[5].task_id} was played by 4 rollout"):
        group.take(wait=True)


def test_a_run_without_any_place_ends(cluster, monkeypatch):
    monkeypatch.setattr(ray_rollouts, "_PLACED_WITHIN_S", 0.0)
    cluster.places = 0
    group = started(2)
    group.order(order(0))
    with pytest.raises(TrainingError, match="rollout_workers=2 found a place within 0 s"):
        group.take(wait=True)

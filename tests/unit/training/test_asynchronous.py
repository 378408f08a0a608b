import asyncio
import copy
import threading
import time
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from espalier.config import CurriculumConfig, TrainingConfig
from espalier.curriculum.pool import TaskPool
from espalier.rollout.roller import Roller
from espalier.training.checkpoint import cloned_weights
from espalier.training.rl.asynchronous import (
    AsynchronousSampler,
    GroupOrder,
    GroupPlan,
    PolicyReplica,
    RolloutWorker,
    SampledGroup,
)
from espalier.training.rl.publishing import MemoryPublisher, WorkerPublisher
from tests.factories.tiny import lookup_environments, tiny_policy
from tests.factories.training import PROFILE, SEARCH, make_task, make_trajectory

TASKS = [make_task(f"name{number}") for number in range(40)]


class ScriptedWorker:
    """Finishes ordered groups on request; every other attempt succeeds."""

    def __init__(self, version=0, outcomes=(0, 1, 0, 1)):
        self.version = version
        self.outcomes = outcomes
        self.orders = deque()
        self.finished = deque()
        self.closed = False

    def order(self, order):
        self.orders.append((order, self.version))

    def finish(self, count):
        for _ in range(count):
            order, version = self.orders.popleft()
            played = [
                replace(make_trajectory(order.task, outcome), policy_version=version)
                for outcome in self.outcomes
            ]
            mixed = len(set(self.outcomes)) > 1
            self.finished.append(SampledGroup(order.task.task_id, version, played, None, mixed))

    def take(self, *, wait):
        if wait and not self.finished:
            self.finish(1)
        return self.finished.popleft() if self.finished else None

    def close(self):
        self.closed = True


def _sampler(worker, *, max_staleness=1, screening=0, tasks=TASKS, **changes):
    settings = {"tasks_per_step": 3, "group_size": 4, "minibatches": 1} | changes
    settings["asynchronous"] = {"max_staleness": max_staleness}
    settings.setdefault("algorithm", {"filters": []})
    config = TrainingConfig.model_validate(settings)
    pool = TaskPool(tasks, CurriculumConfig())
    return AsynchronousSampler(worker, pool, config, seed=0, screening=screening)


def test_a_step_gets_as_many_groups_as_it_asks_for():
    result = _sampler(ScriptedWorker()).sample(0, groups=3)
    assert [len(group.trajectories) for group in result.groups] == [4, 4, 4]
    assert (result.groups_sampled, len(result.sampled)) == (3, 12)


@pytest.mark.parametrize("max_staleness", [1, 3])
def test_groups_are_ordered_ahead_as_far_as_the_bound_allows(max_staleness):
    worker = ScriptedWorker()
    sampler = _sampler(worker, max_staleness=max_staleness)
    for step in range(4):
        sampler.sample(step, groups=3)
        worker.version = step + 1
    assert len(worker.orders) == max_staleness * 3


def test_a_quarter_of_a_long_bound_is_kept_in_reserve():
    worker = ScriptedWorker()
    _sampler(worker, max_staleness=8).sample(0, groups=3)
    assert len(worker.orders) == 6 * 3


def test_under_an_older_version_fewer_groups_are_ordered_ahead():
    worker = ScriptedWorker()
    sampler = _sampler(worker, max_staleness=3)
    for step in range(3):
        sampler.sample(step, groups=3)
    assert len(worker.orders) == 3  # of version 0, for step 3 alone


def test_no_task_is_in_flight_twice():
    worker = ScriptedWorker()
    sampler = _sampler(worker, max_staleness=3)
    sampler.sample(0, groups=3)
    under_way = [order.task.task_id for order, _ in worker.orders]
    assert len(under_way) == len(set(under_way))


def test_the_oldest_version_is_learned_from_first():
    worker = ScriptedWorker()
    sampler = _sampler(worker, max_staleness=2)
    sampler.sample(0, groups=3)
    worker.version = 1
    sampler.sample(1, groups=3)
    worker.finish(len(worker.orders))
    worker.finished.reverse()
    versions = [t.policy_version for t in sampler.sample(2, groups=9).sampled]
    assert set(versions) == {0, 1}
    assert versions == sorted(versions)


def test_no_group_is_staler_than_the_bound():
    worker = ScriptedWorker()
    sampler = _sampler(worker, max_staleness=1)
    sampler.sample(0, groups=3)
    worker.finish(len(worker.orders))
    worker.version = 5
    result = sampler.sample(5, groups=3)
    assert result.too_stale == 3
    assert len(result.groups) == 3
    assert {t.policy_version for t in result.sampled} == {5}


def test_groups_that_the_screening_ended_count_and_do_not_train():
    worker = ScriptedWorker(outcomes=(0, 0, 0, 0))
    result = _sampler(worker, screening=2).sample(0, groups=3)
    assert result.groups == []
    assert result.groups_sampled == 12  # four times as many as wanted, then the step gives up
    assert result.zero_variance_share == 1


def test_a_small_pool_of_tasks_ends_a_step_early():
    result = _sampler(ScriptedWorker(outcomes=(0,) * 4), tasks=TASKS[:2], algorithm={}).sample(
        0, groups=3
    )
    assert result.groups == []
    assert result.groups_sampled == 9  # the default draws anew twice


def test_closing_the_sampler_closes_the_worker():
    worker = ScriptedWorker()
    _sampler(worker).close()
    assert worker.closed


class FakeReplica:
    """Plays a group in `seconds`, or fails; notes what it was opened with."""

    def __init__(self, log, seconds=0.0, failure=None):
        self.in_flight = 0
        self._log, self._seconds, self._failure = log, seconds, failure
        self._version = None
        self.is_open = False

    async def open(self, version, weights):
        assert not self.is_open
        self.is_open, self._version = True, version
        self._log.append(("open", version))

    async def close(self):
        self.is_open = False
        self._log.append(("close", self._version))

    async def sample(self, order):
        assert self.is_open
        await asyncio.sleep(self._seconds)
        if self._failure:
            raise self._failure
        return SampledGroup(order.task.task_id, self._version, [], None, passed_screening=True)


def _order(number):
    return GroupOrder(TASKS[number], f"o{number}", 1.0)


@pytest.fixture
def started():
    workers = []

    def start(make_replica):
        worker = RolloutWorker(make_replica, threads=1)
        workers.append(worker)
        worker.start()
        return worker

    yield start
    for worker in workers:
        worker.close()


def test_a_group_ends_under_the_version_it_began_under(started):
    log = []
    replica = deque([FakeReplica(log, 0.2), FakeReplica(log)])
    worker = started(replica.popleft)
    worker.publish(0, {})
    worker.order(_order(0))
    worker.publish(1, {})
    worker.order(_order(1))
    played = [worker.take(wait=True) for _ in range(2)]
    assert [(group.task_id, group.version) for group in played] == [
        ("name1-0", 1),
        ("name0-0", 0),
    ]
    assert worker.num_replicas == 2


def test_an_idle_replica_serves_the_next_version(started):
    log = []
    worker = started(lambda: FakeReplica(log))
    for version in range(4):
        worker.publish(version, {})
        worker.order(_order(version))
        assert worker.take(wait=True).version == version
    assert worker.num_replicas <= 2
    worker.close()
    assert sum(kind == "open" for kind, _ in log) == sum(kind == "close" for kind, _ in log)


def test_the_workers_error_is_raised_in_the_learner(started):
    worker = started(lambda: FakeReplica([], failure=ValueError("no such tool")))
    worker.publish(0, {})
    worker.order(_order(0))
    with pytest.raises(ValueError, match="no such tool"):
        worker.take(wait=True)


def test_a_failed_replica_raises_in_the_learner(started):
    def broken():
        raise RuntimeError("no memory")

    worker = started(broken)
    worker.publish(0, {})
    with pytest.raises(RuntimeError, match="no memory"):
        worker.take(wait=True)
    worker.order(_order(0))  # nobody takes it, and it raises no error


def test_closing_cancels_groups_and_ends_the_thread(started):
    log = []
    worker = started(lambda: FakeReplica(log, seconds=60.0))
    worker.publish(0, {})
    worker.order(_order(0))
    time.sleep(0.05)
    began = time.monotonic()
    worker.close()
    assert time.monotonic() - began < 5
    assert log[-1] == ("close", 0)
    assert not [t for t in threading.enumerate() if t.name == "espalier-rollouts"]


def test_closing_restores_the_number_of_cpu_threads(started):
    before = torch.get_num_threads()
    worker = started(lambda: FakeReplica([]))
    worker.close()
    assert torch.get_num_threads() == before


def test_a_replica_samples_whole_groups_with_the_published_weights(started):
    policy, plan = tiny_policy(), GroupPlan(group_size=4, screening=0, wants_baseline=True)

    def make_replica():
        own = copy.deepcopy(policy)
        return PolicyReplica(
            Roller.local(own, lookup_environments(SEARCH, PROFILE), PROFILE), own.model, plan
        )

    worker = started(make_replica)
    dev_roller = SimpleNamespace(policy_version=-1)
    local = MemoryPublisher(policy.model, policy, [dev_roller])
    publisher = WorkerPublisher(local, policy, worker)
    expected = Roller.local(copy.deepcopy(policy), lookup_environments(SEARCH, PROFILE), PROFILE)
    publisher.publish(7)
    with torch.no_grad():  # the learner goes on: nobody else may notice
        for parameter in policy.model.parameters():
            parameter.zero_()
    worker.order(_order(3))
    played = worker.take(wait=True)
    assert (played.version, dev_roller.policy_version) == (7, 7)
    assert len(played.trajectories) == 4
    assert {t.policy_version for t in played.trajectories} == {7}
    greedy = expected.roll_out([TASKS[3]], samples=1, temperature=0.0, seed=0)[0]
    assert played.greedy.token_ids == greedy.token_ids
    assert cloned_weights(policy.model).keys() == policy.model.state_dict().keys()


def test_the_worker_gets_every_nth_version_of_the_weights():
    given = []
    worker = SimpleNamespace(version=None)

    def publish(version, _):
        worker.version = version
        given.append(version)

    worker.publish = publish
    policy, dev_roller = tiny_policy(), SimpleNamespace(policy_version=-1)
    local = MemoryPublisher(policy.model, policy, [dev_roller])
    publisher = WorkerPublisher(local, policy, worker, every=3)
    for version in range(4, 11):
        publisher.publish(version)
        assert dev_roller.policy_version == version
    assert given == [4, 6, 9]


def test_a_replica_completes_a_group_only_if_screening_passes(started):
    policy, plan = tiny_policy(), GroupPlan(group_size=6, screening=2, wants_baseline=False)
    worker = started(
        lambda: PolicyReplica(
            Roller.local(policy, lookup_environments(SEARCH, PROFILE), PROFILE), policy.model, plan
        )
    )
    worker.publish(0, cloned_weights(policy.model))
    worker.order(_order(0))  # an untrained policy never succeeds
    played = worker.take(wait=True)
    assert len(played.trajectories) == 2
    assert not played.passed_screening

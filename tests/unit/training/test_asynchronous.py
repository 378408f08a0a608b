import asyncio
import copy
import random
import threading
import time
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from espalier.config import CurriculumConfig, TrainingConfig
from espalier.curriculum.pool import TaskPool
from espalier.records import HungError
from espalier.rollout.roller import Roller
from espalier.rollout.waits import EpisodeWaits
from espalier.training.checkpoint import cloned_weights
from espalier.training.rl.asynchronous import (
    GroupOrder,
    PolicyReplica,
    RolloutWorker,
    SampledGroup,
)
from espalier.training.rl.ledger import DrawJournal, Outcome
from espalier.training.rl.pacing import AsynchronousSampler
from espalier.training.rl.publishing import MemoryPublisher, WorkerPublisher
from espalier.training.rl.sampling import draws_of
from tests.factories.rl_loops import rollout_threads
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
            self.finished.append(SampledGroup(order.draw, version, played, None, mixed))

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


def test_a_step_gets_its_groups_and_no_task_flies_twice():
    worker = ScriptedWorker()
    result = _sampler(worker, max_staleness=3).sample(0, groups=3)
    assert [len(group.trajectories) for group in result.groups] == [4, 4, 4]
    assert (result.groups_sampled, len(result.sampled)) == (3, 12)
    under_way = [order.task.task_id for order, _ in worker.orders]
    assert len(under_way) == len(set(under_way))


@pytest.mark.parametrize(
    ("max_staleness", "groups", "under_way"),
    # a quarter of a long bound is kept in reserve
    [(1, 1, 1), (2, 1, 2), (4, 1, 3), (8, 1, 6), (1, 2, 2), (3, 3, 9), (8, 3, 18)],
)
def test_groups_are_ordered_ahead_as_far_as_the_bound_allows(max_staleness, groups, under_way):
    worker = ScriptedWorker()
    sampler = _sampler(worker, max_staleness=max_staleness, tasks_per_step=groups)
    for step in range(4):
        worker.version = step
        assert len(sampler.sample(step, groups=groups).groups) == groups
        assert len(worker.orders) == under_way
    last = ScriptedWorker()
    sampler = _sampler(last, max_staleness=max_staleness, tasks_per_step=groups, steps=4)
    for step in range(4):
        last.version = step
        result = sampler.sample(step, groups=groups)
        sampler.ledger.settle(draws_of(result.groups), Outcome.TRAINED)
    assert sampler.ledger.open_draws == [], "nothing that no step could learn from"
    assert sampler.ledger.counts == {"trained": 4 * groups}


def test_under_an_older_version_fewer_groups_are_ordered_ahead():
    worker = ScriptedWorker()
    sampler = _sampler(worker, max_staleness=3)
    for step in range(3):
        sampler.sample(step, groups=3)
    assert len(worker.orders) == 3  # of version 0, for step 3 alone


def test_the_oldest_version_is_learned_from_first():
    worker = ScriptedWorker()
    sampler = _sampler(worker, max_staleness=2)
    for version in (0, 1):
        worker.version = version
        sampler.sample(version, groups=3)
    worker.finish(len(worker.orders))
    worker.finished.reverse()
    versions = [t.policy_version for t in sampler.sample(2, groups=9).sampled]
    assert set(versions) == {0, 1}
    assert versions == sorted(versions)


class Shuffled(ScriptedWorker):
    """Ends any of the ordered groups, with any outcome, when it is asked for one or before."""

    def __init__(self, rng):
        super().__init__()
        self._rng = rng
        self.ordered = []

    def order(self, order):
        super().order(order)
        self.ordered.append(order.draw)

    def take(self, *, wait):
        if self.orders and (wait or self._rng.random() < 0.5):
            self.orders.rotate(self._rng.randrange(len(self.orders)))
            self.outcomes = self._rng.choice([(0, 1, 0, 1), (0, 1, 1, 1), (0, 0, 0, 0)])
            self.finish(1)
        return super().take(wait=wait)


@pytest.mark.parametrize("seed", range(40))
def test_no_group_is_ever_too_old_and_each_is_settled(seed):
    rng = random.Random(seed)
    bound = rng.choice([1, 2, 3, 8])
    publish_every = rng.randrange(1, bound + 1)
    worker, steps = Shuffled(rng), 20
    replay = rng.choice([{}, {"capacity": 4, "share": 0.34}])
    algorithm = rng.choice([{}, {"filters": []}])
    sampler = _sampler(worker, max_staleness=bound, algorithm=algorithm, steps=steps, replay=replay)
    ledger = sampler.ledger
    for step in range(steps):
        ledger.step = step + 1
        worker.version = step - step % publish_every
        groups = rng.choice([2, 3]) if replay else 3
        result = sampler.sample(step, groups=groups)
        oldest = min((t.policy_version for t in result.sampled), default=step)
        assert step - oldest <= bound
        assert len(result.groups) <= 3
        ledger.settle(draws_of(result.groups), Outcome.TRAINED)
    ledger.end()
    assert sum(ledger.counts.values()) == ledger.num_draws == len(worker.ordered)
    assert sorted(worker.ordered) == list(range(ledger.num_draws))


def test_a_draw_depends_on_its_number_alone():
    few, many = ScriptedWorker(), ScriptedWorker()
    for worker, bound in ((few, 1), (many, 3)):
        _sampler(worker, max_staleness=bound).sample(0, groups=3)
    pairs = zip(few.orders, many.orders, strict=False)
    assert all(one[0].task == other[0].task for one, other in pairs)


def test_an_open_draw_whose_task_is_gone_is_dropped():
    worker = ScriptedWorker()
    sampler = _sampler(worker)
    sampler.ledger.draw([TASKS[0].task_id, "posed-7"])
    sampler.sample(0, groups=3)
    assert sampler.ledger.counts == {"task_gone": 1}
    assert [number for number, *_ in sampler.ledger.open_draws] == [0, 2, 3, 4, 5, 6]


def test_a_resumed_sampler_orders_open_draws_first(tmp_path):
    journal = DrawJournal(tmp_path / ".draws.jsonl", "run")
    former = ScriptedWorker()
    sampler = _sampler(former, max_staleness=2)
    ledger = sampler.ledger
    ledger.journal = journal
    ledger.restore(None, step=0)
    result = sampler.sample(0, groups=3)
    ledger.settle(draws_of(result.groups), Outcome.TRAINED)
    state = ledger.state()
    ledger.saved()
    former.version = 1
    sampler.sample(1, groups=3)  # what it learns from is lost in the kill
    drawn = {order.draw: order.task.task_id for order, _ in former.orders}
    worker = ScriptedWorker(version=1)
    resumed = _sampler(worker, max_staleness=2)
    again = resumed.ledger
    again.journal = journal
    again.restore(state, step=1)
    result = resumed.sample(1, groups=3)
    again.settle(draws_of(result.groups), Outcome.TRAINED)
    assert [row.number for row in again.open_draws] == list(range(6, again.num_draws))
    ordered = {order.draw: order.task.task_id for order, _ in worker.orders}
    assert {draw: ordered[draw] for draw in drawn} == drawn
    assert again.counts == {"trained": 6}


@pytest.mark.parametrize(
    ("changes", "sampled"),
    [
        ({"screening": 2}, 12),  # four times as many as wanted, then the step gives up
        ({"tasks": TASKS[:2], "algorithm": {}}, 9),  # the default draws anew twice
    ],
)
def test_groups_ended_by_screening_or_a_filter_do_not_train(changes, sampled):
    worker = ScriptedWorker(outcomes=(0, 0, 0, 0))
    sampler = _sampler(worker, **changes)
    result = sampler.sample(0, groups=3)
    assert (result.groups, result.groups_sampled) == ([], sampled)
    assert result.zero_variance_share == 1
    sampler.close()
    assert worker.closed


class FakeReplica:
    """Plays a group in `seconds`, or fails; notes what it was opened with."""

    takes_weights_in_flight = False

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
        return SampledGroup(order.draw, self._version, [], None, passed_screening=True)


def _order(number):
    return GroupOrder(number, TASKS[number], (f"o{number}:0", f"o{number}:1"), 1.0)


@pytest.fixture
def started():
    workers = []

    def start(make_replica, **how):
        worker = RolloutWorker(make_replica, threads=1, **how)
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
    assert [(group.draw, group.version) for group in played] == [(1, 1), (0, 0)]
    assert worker.num_replicas == 2


def test_a_replica_on_servers_takes_weights_while_it_samples(started):
    log = []

    class Servers(FakeReplica):
        takes_weights_in_flight = True

        async def open(self, version, weights):
            self.is_open, self._version = True, version
            log.append(("open", version))

    worker = started(lambda: Servers(log, 0.2))
    for version in range(2):
        worker.publish(version, {})
        worker.order(_order(version))
    assert [worker.take(wait=True).draw for _ in range(2)] == [0, 1]
    assert worker.num_replicas == 1
    assert log == [("open", 0), ("open", 1)], "it was never closed"


def test_a_coroutine_beside_the_groups_runs_under_the_published_weights(started):
    log = []
    worker = started(lambda: FakeReplica(log))

    async def noted():
        await asyncio.sleep(0)
        return list(log)

    worker.publish(0, {})
    worker.publish(1, {})
    assert worker.run(noted())[-1] == ("open", 1)
    failing = started(lambda: FakeReplica([], failure=ValueError("no such tool")))
    failing.publish(0, {})
    with pytest.raises(ZeroDivisionError):
        failing.run(divided())
    worker.close()
    with pytest.raises(RuntimeError, match="closed"):
        worker.run(noted())


async def divided():
    return 1 / 0


def test_whoever_waits_for_a_worker_that_fails_hears_of_it(started):
    def broken():
        raise RuntimeError("no memory")

    worker = started(broken)
    worker.publish(0, {})
    with pytest.raises(RuntimeError, match="no memory"):
        worker.run(asyncio.sleep(60))


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


def test_an_error_beside_the_learner_is_raised_in_it(started):
    worker = started(lambda: FakeReplica([], failure=ValueError("no such tool")))
    worker.publish(0, {})
    worker.order(_order(0))
    with pytest.raises(ValueError, match="tool"):
        worker.take(wait=True)

    def broken():
        raise RuntimeError("no memory")

    worker = started(broken)
    worker.publish(0, {})
    with pytest.raises(RuntimeError, match="memory"):
        worker.take(wait=True)
    worker.order(_order(0))  # nobody takes it, and it raises no error


def test_a_group_that_hangs_is_named_by_the_deadline(started):
    waits = EpisodeWaits()
    worker = started(lambda: FakeReplica([], seconds=60.0), limit_s=0.2, waits=lambda: [waits])
    worker.publish(3, {})
    worker.order(_order(0))
    with (
        waits.wait("name0-0", "the tool search"),
        pytest.raises(HungError, match=r"0\.2 s: .*name0-0 .*the tool search"),
    ):
        worker.take(wait=True)


def test_weights_that_are_never_loaded_are_named(started):
    class Stuck(FakeReplica):
        async def open(self, version, weights):
            await asyncio.Event().wait()

    worker = started(lambda: Stuck([]), limit_s=0.2)
    worker.publish(3, {})
    with pytest.raises(HungError, match="version 3"):
        worker.take(wait=True)
    worker.close()
    assert not rollout_threads()


def test_closing_cancels_groups_and_ends_the_thread(started):
    log, threads = [], torch.get_num_threads()
    worker = started(lambda: FakeReplica(log, seconds=60.0))
    worker.publish(0, {})
    worker.order(_order(0))
    time.sleep(0.05)
    began = time.monotonic()
    worker.close()
    assert time.monotonic() - began < 5
    assert log[-1] == ("close", 0)
    assert not rollout_threads()
    assert torch.get_num_threads() == threads


class Weighing:
    """A roller that notes the digest of its model's weights at a group's start and end."""

    def __init__(self, model, rng):
        self.policy_version = -1
        self._model, self._rng = model, rng

    @asynccontextmanager
    async def serving(self):
        yield self

    async def roll_out_group(self, task, context, *, temperature, names):
        before = digest(self._model)
        await asyncio.sleep(self._rng.random() * 2e-3)
        weighed = SimpleNamespace(is_lost=False, before=before, after=digest(self._model))
        return [weighed for _ in names]


def digest(model):
    return tuple(weight.detach().numpy().tobytes() for weight in model.parameters())


def test_versions_published_in_the_midst_of_updates_stay_whole(started):
    """An update and a change of weights at once must not mix (verl#7423)."""
    rng = random.Random(0)
    learner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))

    def make_replica():
        own = copy.deepcopy(learner)
        return PolicyReplica(Weighing(own, random.Random(rng.random())), own)

    worker = started(make_replica)
    policy = SimpleNamespace(model=learner)
    local = MemoryPublisher(learner, policy, [])
    publisher = WorkerPublisher(local, lambda _: cloned_weights(learner), worker)
    published, played = [], []
    for version in range(1000):
        with torch.no_grad():
            for weight in learner.parameters():
                weight.add_(rng.random())
                time.sleep(rng.random() * 2e-4)
        publisher.publish(version)
        published.append(digest(learner))
        worker.order(_order(version % len(TASKS))._replace(draw=version))
        while (group := worker.take(wait=False)) is not None:
            played.append(group)
    while len(played) < 1000:
        played.append(worker.take(wait=True))
    assert sorted(group.draw for group in played) == list(range(1000))
    assert all(group.draw == group.version for group in played)
    for group in played:
        for weighed in group.trajectories:
            assert weighed.before == weighed.after == published[group.version]


def test_a_sampler_that_stops_while_it_loads_weights_is_named(started):
    """The learner is not waited for, and does not wait for ever (NeMo-RL#2717)."""
    stopped, goes_on = threading.Event(), threading.Event()

    class Stops(torch.nn.Linear):
        def load_state_dict(self, weights, **_):
            stopped.set()
            assert goes_on.wait(60)

    replica = PolicyReplica(Weighing(learner := Stops(2, 2), random.Random(0)), learner)
    worker = started(lambda: replica, limit_s=0.2)
    policy = SimpleNamespace(model=learner)
    local = MemoryPublisher(learner, policy, [])
    publisher = WorkerPublisher(local, lambda _: cloned_weights(learner), worker)
    began_s = time.monotonic()
    for version in (3, 4):
        publisher.publish(version)
    assert stopped.wait(60)
    worker.order(_order(0))
    with pytest.raises(HungError, match="loading of weights, version 3"):
        worker.take(wait=True)
    worker.close()
    assert time.monotonic() - began_s < 30
    goes_on.set()


def _roller(policy):
    return Roller.local(policy, lookup_environments(SEARCH, PROFILE), PROFILE)


def test_a_replica_samples_whole_groups_with_the_published_weights(started):
    policy = tiny_policy()

    def make_replica():
        own = copy.deepcopy(policy)
        return PolicyReplica(_roller(own), own.model)

    worker = started(make_replica)
    dev_roller = SimpleNamespace(policy_version=-1)
    local = MemoryPublisher(policy.model, policy, [dev_roller])
    expected = _roller(copy.deepcopy(policy))
    WorkerPublisher(local, lambda _: cloned_weights(policy.model), worker).publish(7)
    with torch.no_grad():  # the learner goes on: nobody else may notice
        for parameter in policy.model.parameters():
            parameter.zero_()
    worker.order(_order(3)._replace(names=tuple("abcd"), wants_baseline=True))
    played = worker.take(wait=True)
    assert (played.version, dev_roller.policy_version) == (7, 7)
    assert [t.policy_version for t in played.trajectories] == [7] * 4
    greedy = expected.roll_out([TASKS[3]], samples=1, temperature=0.0, seed=0)[0]
    assert played.greedy.token_ids == greedy.token_ids


@pytest.fixture
def every_third():
    """A publisher, the versions that its worker got, and a roller of the learner's thread."""
    given, worker, dev_roller = (
        [],
        SimpleNamespace(version=None),
        SimpleNamespace(policy_version=-1),
    )
    worker.publish = lambda version, _: given.append(version) or setattr(worker, "version", version)
    policy = tiny_policy()
    local = MemoryPublisher(policy.model, policy, [dev_roller])
    return WorkerPublisher(local, lambda _: {}, worker, every=3), given, dev_roller


def test_the_worker_gets_every_nth_version_of_the_weights(every_third):
    publisher, given, dev_roller = every_third
    for version in range(4, 11):
        publisher.publish(version)
        assert dev_roller.policy_version == version
    assert given == [4, 6, 9]


@pytest.mark.parametrize("returned_to", [5, 4])
def test_returned_weights_reach_the_worker_at_once(every_third, returned_to):
    publisher, given, _ = every_third
    for version in (3, 4, 5):
        publisher.publish(version)
    publisher.publish(returned_to)  # the run went back: what was sampled from is left
    assert given == [3, returned_to]


def test_a_replica_completes_a_group_only_if_screening_passes(started):
    policy = tiny_policy()
    worker = started(lambda: PolicyReplica(_roller(policy), policy.model))
    worker.publish(0, cloned_weights(policy.model))
    # an untrained policy never succeeds
    worker.order(_order(0)._replace(names=tuple("abcdef"), screening=2))
    played = worker.take(wait=True)
    assert (len(played.trajectories), played.passed_screening) == (2, False)

"""Several processes and nodes: who plays what, who publishes, and who is named when one is lost."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ray.exceptions import RayActorError, RayTaskError

from espalier.config import Profile
from espalier.policy.hardware import Hardware, copy_weights
from espalier.records import NullTracker, TrainingError, tree_digest
from espalier.records.task import write_tasks
from espalier.rollout.roller import RolloutCounts
from espalier.training import ray_workers as on_ray
from espalier.training.checkpoint import CheckpointStore
from espalier.training.launch import local_workers
from espalier.training.parallel import Processes
from espalier.training.ray_workers import ray_workers
from espalier.training.rl.ledger import PromptLedger
from espalier.training.rl.publishing import (
    DirectoryPublisher,
    MemoryPublisher,
    PolicyDirectories,
)
from espalier.training.rl.rows import Group
from espalier.training.rl.sampling import RankZeroRoller, RankZeroSampler, SplitRoller, StepRollouts
from espalier.training.rl.speed import update_speed
from espalier.training.rl.wiring import TrainingRun, build_run
from tests.factories.rl_loops import same_weights
from tests.factories.tiny import lookup_environments, tiny_policy
from tests.factories.tiny_training import publish_warm
from tests.factories.training import SEARCH, TASKS, make_task

CPU = torch.device("cpu")


class Among(Processes):
    """One of several processes in a test's one; the others' items are given."""

    def __init__(self, rank, count, others=None):
        super().__init__(rank, count)
        self._others = others

    def gather(self, item):
        return [item if rank == self.rank else self._others(rank) for rank in range(self.count)]

    def broadcast(self, item):
        return item if self.is_first else "the first one's"


class Plays:
    """Says what was asked of it; a trajectory is its task's name and number."""

    def __init__(self):
        self.asked = []

    def roll_out(self, tasks, *, samples, temperature, seed):
        self.asked.append((tuple(tasks), samples, temperature, seed))
        return [f"{task}{number}" for task in tasks for number in range(samples)]


@pytest.mark.parametrize(("count", "tasks"), [(1, "ab"), (2, "abcde"), (4, "abc"), (3, "")])
def test_every_process_gets_all_trajectories_and_draws_by_itself(count, tasks):
    asked, seeds = {"samples": 2, "temperature": 0.7, "seed": 5}, {5}
    for rank in range(count):
        players = [Plays() for _ in range(count)]

        def of(other, players=players):
            return players[other].roll_out(tasks[other::count], **asked)

        own = SplitRoller(players[rank], Among(rank, count, of) if count > 1 else Processes())
        assert own.roll_out(tasks, **asked) == [f"{task}{n}" for task in tasks for n in range(2)]
        [(*found, seed)] = players[rank].asked
        assert found == [tuple(tasks[rank::count]), 2, 0.7]
        seeds.add(seed)
    assert len(seeds) == (1 if count == 1 else count + 1)


def test_the_first_process_plays_and_samples_for_all():
    first, other = Plays(), Plays()
    asked = {"samples": 1, "temperature": 1.0, "seed": 0}
    assert RankZeroRoller(first, Among(0, 2)).roll_out(["a"], **asked) == ["a0"]
    assert RankZeroRoller(other, Among(1, 2)).roll_out(["a"], **asked) == "the first one's"
    assert (len(first.asked), other.asked) == (1, [])
    sampled, closed = StepRollouts(lost=3), []
    groups = [Group(trajectories=(), draw=7)]

    class Second(Among):
        def broadcast(self, item):
            return StepRollouts(groups=groups, lost=3)

    own = SimpleNamespace(
        sample=lambda step, *, groups: sampled,
        close=lambda: closed.append("own"),
        ledger=PromptLedger(),
        left_out=set(),
    )
    ours, theirs = RankZeroSampler(own, Among(0, 2)), RankZeroSampler(None, Second(1, 2))
    assert ours.sample(0, groups=2) is sampled
    heard = theirs.sample(0, groups=2)
    assert (heard.lost, [group.draw for group in heard.groups]) == (3, [None])
    ours.close()
    theirs.close()
    assert closed == ["own"]


class Reads:
    def __init__(self):
        self.policy_version, self.loaded = None, []

    def load_weights(self, policy_dir, version):
        assert (policy_dir / "config.json").is_file()
        self.loaded.append((policy_dir.name, version))


def test_rollers_get_published_weights_from_memory_or_the_newest_directory(tmp_path):
    trained, rollers = tiny_policy(1).model, [Reads(), Reads()]
    policy, other = tiny_policy(0), tiny_policy(0)
    local, directories = MemoryPublisher(trained, policy, []), PolicyDirectories(policy, tmp_path)
    publisher = DirectoryPublisher(local, rollers, directories)
    publisher.publish(1)
    publisher.publish(2)
    assert [path.name for path in tmp_path.iterdir()] == ["version-2"]
    assert [roller.loaded for roller in rollers] == [[("version-1", 1), ("version-2", 2)]] * 2
    silent = PolicyDirectories(policy, tmp_path / "silent")
    DirectoryPublisher(local, [], silent).publish(3)
    assert not (tmp_path / "silent").exists()
    MemoryPublisher(trained, other, rollers).publish(4)
    assert [roller.policy_version for roller in rollers] == [4, 4]
    assert same_weights(trained, policy.model)
    assert same_weights(trained, other.model)


def test_other_weights_of_a_published_version_are_written_too(tmp_path):
    policy = tiny_policy(0)
    directories = PolicyDirectories(policy, tmp_path)
    first = directories.write(3)
    former = tree_digest(first)
    assert directories.write(3) == first
    copy_weights(tiny_policy(1).model, policy.model)  # a run that returns to its best weights
    second = directories.write(3)
    assert tree_digest(first) == former != tree_digest(second)
    directories.remove_former(second)
    assert list(tmp_path.iterdir()) == [second]


def test_a_former_version_that_is_gone_is_not_missed(tmp_path):
    directories = PolicyDirectories(tiny_policy(0), tmp_path)
    directories.write(1).rename(tmp_path / "away")
    second = directories.write(2)
    directories.remove_former(second)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "away", second]


class Started:
    """A process that has this exit code; None still runs."""

    def __init__(self, exitcode):
        self.exitcode, self.ended = exitcode, []
        self.start = lambda: None
        self.join = lambda: self.ended.append("joined")
        self.terminate = lambda: self.ended.append("terminated")


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ([0, None], None),
        ([1, None], "rank 1 of 3.*exit code 1"),
        ([1, -9], "rank 2 of 3.*SIGKILL"),
        ([-6, 1], "rank 2 of 3.*exit code 1"),
        ([1, -11], "rank 2 of 3.*SIGSEGV"),
        ([-11, -15], "rank 2 of 3.*SIGTERM"),
    ],
)
def test_who_was_killed_is_named_before_who_noticed(monkeypatch, codes, said):
    started, given = [Started(code) for code in codes], []
    waiting = iter(started)

    def made(*, target, args, daemon):
        given.append(args)
        return next(waiting)

    monkeypatch.setattr(
        "espalier.training.launch.multiprocessing.get_context",
        lambda method: SimpleNamespace(Process=made),
    )
    with local_workers(3, CPU) as companions:
        companions.start(print)
        told = companions.failure()
    assert given == [(1, 1), (2, 2)]
    assert told is None if said is None else re.match(said, str(told)) and "node" not in str(told)
    assert [process.ended for process in started] == [["terminated", "joined"]] * 2


class Cluster:
    """Ray, as far as it is asked: nodes with places, and actors that end as they are told to."""

    def __init__(self, *nodes, placed_on=(), ends=()):
        self._nodes, self._placed_on, self._ends = nodes, placed_on, dict(enumerate(ends))
        self.places, self.options, self.killed, self.served = None, [], [], []
        self.is_up = False

    def is_initialized(self):
        return self.is_up

    def init(self, address):
        self.is_up = True

    def shutdown(self):
        self.is_up = False

    def nodes(self):
        names = ("NodeID", "NodeManagerAddress", "Resources", "Alive")
        rows = [(name, f"address-{name}", *rest) for name, *rest in self._nodes]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "here")

    def remote(self, **options):
        number = len(self.options)
        self.options.append(options)

        def serve(environment, duty, rank):
            self.served.append((number, dict(environment), rank))
            return number

        actor = SimpleNamespace(
            number=number,
            node=SimpleNamespace(remote=lambda: self._placed_on[number]),
            serve=SimpleNamespace(remote=serve),
        )
        return lambda _: SimpleNamespace(remote=lambda: actor)

    def get(self, what, timeout=None):
        if isinstance(what, list):
            return what
        if isinstance(end := self._ends[what], Exception):
            raise end
        return end

    def wait(self, serving, *, num_returns, timeout):
        assert num_returns == len(serving)
        ended = [one for one in serving if one in self._ends]
        return ended, [one for one in serving if one not in ended]

    def kill(self, actor):
        self.killed.append(actor.number)

    def placement_group(self, bundles, strategy):
        self.places = (bundles, strategy)


@pytest.fixture
def on(monkeypatch):
    def cluster(*nodes, **how):
        ray = Cluster(*nodes, **how)
        for name, double in {
            "ray": ray,
            "placement_group": ray.placement_group,
            "remove_placement_group": lambda places: None,
            "PlacementGroupSchedulingStrategy": (
                lambda places, placement_group_bundle_index: placement_group_bundle_index
            ),
        }.items():
            monkeypatch.setattr(on_ray, name, double)
        return ray

    return cluster


def test_ranks_fill_this_node_before_they_go_to_another(on):
    nodes = (("here", {"CPU": 2}, True), ("b", {"CPU": 2}, True))
    ray = on(*nodes, placed_on=("b", "here", "b"))
    with ray_workers(4, CPU, environment={"A": "1"}) as companions:
        companions.start(print)
        assert companions.address == "address-here"
    assert ray.served == [(1, {"A": "1"}, 1), (0, {"A": "1"}, 2), (2, {"A": "1"}, 3)]
    assert ray.places == ([{"CPU": 1.0}] * 3, "SPREAD")
    assert [options["num_cpus"] for options in ray.options] == [1, 1, 1]
    assert [options["num_gpus"] for options in ray.options] == [0, 0, 0]
    assert [options["scheduling_strategy"] for options in ray.options] == [0, 1, 2]
    assert (ray.killed, ray.is_up) == ([0, 1, 2], False)


def test_a_cluster_with_too_few_places_is_refused(on):
    nodes = (
        ("here", {"GPU": 2, "CPU": 64}, True),
        ("b", {"GPU": 1}, True),
        ("c", {"CPU": 8}, True),
        ("gone", {"GPU": 9}, False),
    )
    ray, gpu = on(*nodes, placed_on=("b", "here")), torch.device("cuda")
    with ray_workers(3, gpu, environment={}):
        assert [options["num_gpus"] for options in ray.options] == [1, 1]
        assert ray.places[0] == [{"GPU": 1.0}] * 2
    with (
        pytest.raises(TrainingError, match=r"4 GPUs.*3 on 2 nodes"),
        ray_workers(4, gpu, environment={}),
    ):
        pass
    assert not ray.is_up


GONE, OWN = (
    RayTaskError("serve", "Traceback", cause)
    for cause in (RuntimeError("peer is gone"), ValueError("own fault"))
)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((None, None), None),
        ((GONE,), "rank 1 of 3"),
        ((GONE, OWN), "rank 2 of 3"),
        ((OWN, RayActorError()), "rank 2 of 3"),
        ((RayActorError(), OWN), "rank 1 of 3"),
    ],
)
def test_the_gravest_end_of_a_node_is_told(on, ends, said):
    nodes = (("here", {"CPU": 9}, True), ("b", {"CPU": 9}, True))
    on(*nodes, placed_on=("b", "b"), ends=ends)
    with ray_workers(3, CPU, environment={}) as companions:
        companions.start(print)
        told = companions.failure()
        companions.wait()
    if said is None:
        assert told is None
    else:
        assert str(told).startswith(said)
        assert "address-b" in str(told)


@pytest.mark.parametrize(
    ("seconds", "total_s", "rate", "share"),
    [([2.0, 3.0], 10.0, 12.0, 0.25), ([0.0, 0.0], 10.0, 6.0, 0.25), ([0.0, 0.0], 0.0, 60.0, 2.5)],
)
def test_throughput_is_that_of_sampling_where_it_has_its_time(seconds, total_s, rate, share):
    counts = RolloutCounts.total(
        RolloutCounts(seconds=s, tokens=30, drifted_turns=1, compared_turns=8) for s in seconds
    )
    loop = SimpleNamespace(seconds=total_s, waited_s=2.5)
    figures = {
        "rollout_tokens_per_s": rate,
        "learner_wait_share": share,
        "token_drift": 2,
        "compared_turns": 16,
    }
    dev_roller = SimpleNamespace(drafted_tokens=0)
    assert TrainingRun(None, loop, lambda: counts, dev_roller, 200).figures == figures
    drafted = {"drafted_tokens": 100, "accepted_tokens": 97}
    dev_roller = SimpleNamespace(counts=RolloutCounts(**drafted), **drafted)
    assert TrainingRun(None, loop, lambda: counts, dev_roller, 200).figures == figures | drafted


def inputs_in(folder):
    publish_warm(tiny_policy(), folder / "warm_policy")
    (folder / "curriculum").mkdir()
    (folder / "accepted" / "tasks").mkdir(parents=True)
    write_tasks(folder / "curriculum" / "tasks.jsonl", TASKS)
    for split in ("dev", "heldout"):
        tasks = [make_task("lyon", n) for n in range(3)]
        write_tasks(folder / "accepted" / "tasks" / f"{split}.jsonl", tasks)
    rates = [
        {"task_id": task.task_id, "attempts": 100, "successes": 50 if place else 0}
        for place, task in enumerate(TASKS)
    ]
    pq.write_table(pa.Table.from_pylist(rates), folder / "curriculum" / "pass_rates.parquet")
    return {name: folder / name for name in ("warm_policy", "curriculum", "accepted")}


@pytest.mark.parametrize("asynchronous", [{}, {"max_staleness": 1}])
def test_a_run_is_wired_from_its_inputs(tmp_path, asynchronous):
    profile = Profile.model_validate(
        {
            "episode": {"max_turns": 2, "max_tokens": 64, "max_turn_tokens": 14},
            "curriculum": {"pass_rate_band": [0.2, 0.8], "screening_rollouts": 0},
            "training": {
                "steps": 1,
                "tasks_per_step": 1,
                "group_size": 2,
                "minibatches": 1,
                "dev_questions": 2,
                "asynchronous": asynchronous,
                "algorithm": {"filters": []},
            },
        }
    )
    views = []

    def environments_over(view):
        views.append(view)
        return lookup_environments(SEARCH, profile)

    store = CheckpointStore(tmp_path / "work", "run")
    run = build_run(profile, inputs_in(tmp_path), store, Processes(), environments_over)
    run.loop.run(NullTracker())
    (row,) = run.loop.progress.history
    assert row["kept_tasks"] == 4
    assert row["rollouts"] == 2
    assert run.figures["rollout_tokens_per_s"] > 0
    assert run.loop.parts.layout.name == "prefix_tree"
    # two trajectories of one question share its prompt
    assert 0 < row["update_positions"] < row["update_tokens"]
    speed = update_speed(run.loop, Hardware.from_config(profile.hardware), Processes())
    assert speed["update_positions"] == row["update_positions"]
    assert speed["update_tokens_per_s"] == pytest.approx(row["update_tokens"] / speed["update_s"])
    assert 0 < speed["update_matmul_share"] < 1
    assert sorted(views) == ["dev", "train"]


def test_predicted_rewards_are_what_an_outcome_pays(tmp_path):
    inputs, expected = inputs_in(tmp_path), {}
    for outcome in (1.0, 2.0):
        tables = {
            "reward": {"outcome": outcome},
            "curriculum": {"screening_rollouts": 0},
            "training": {"group_size": 1, "algorithm": {"preset": "spo"}},
        }
        profile = Profile.model_validate(tables)
        store = CheckpointStore(tmp_path / f"work{outcome:g}", "run")
        run = build_run(
            profile, inputs, store, Processes(), lambda _, p=profile: lookup_environments(SEARCH, p)
        )
        expected[outcome] = run.loop.parts.pool.predicted_reward(TASKS[-1].task_id)
    assert expected[2.0] == pytest.approx(2 * expected[1.0])
    assert 0.3 < expected[1.0] < 0.7

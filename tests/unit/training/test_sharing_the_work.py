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
from espalier.policy.hardware import Hardware
from espalier.records import NullTracker, TrainingError
from espalier.records.task import write_tasks
from espalier.training import ray_workers as on_ray
from espalier.training.checkpoint import CheckpointStore
from espalier.training.launch import local_workers, lost_worker_message
from espalier.training.parallel import Processes
from espalier.training.ray_workers import ray_workers
from espalier.training.rl.ledger import PromptLedger
from espalier.training.rl.publishing import DirectoryPublisher, MemoryPublisher
from espalier.training.rl.rows import Group
from espalier.training.rl.sampling import RankZeroRoller, RankZeroSampler, SplitRoller, StepRollouts
from espalier.training.rl.speed import update_speed
from espalier.training.rl.wiring import TrainingRun, build_run
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


def split_over(count, tasks, rank=0, samples=2):
    players = [Plays() for _ in range(count)]
    asked = {"samples": samples, "temperature": 0.7, "seed": 5}

    def of(other):
        return players[other].roll_out(tasks[other::count], **asked)

    own = SplitRoller(players[rank], Among(rank, count, of) if count > 1 else Processes())
    return own.roll_out(tasks, **asked), players


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("tasks", [("a", "b", "c"), ("a", "b", "c", "d", "e"), ()])
def test_every_process_gets_all_trajectories_in_order(count, tasks):
    expected = [f"{task}{number}" for task in tasks for number in range(2)]
    for rank in range(count):
        found, players = split_over(count, tasks, rank)
        assert found == expected
        assert players[rank].asked[0][0] == tasks[rank::count]


def test_each_process_draws_by_numbers_of_its_own():
    _, alone = split_over(1, ("a", "b"))
    seeds = [split_over(2, ("a", "b"), rank)[1][rank].asked[0][3] for rank in range(2)]
    assert alone[0].asked == [(("a", "b"), 2, 0.7, 5)]
    assert len({*seeds, 5}) == 3


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


def test_only_the_newest_published_directory_is_kept(tmp_path):
    trained, policy, rollers = tiny_policy(1).model, tiny_policy(0), [Reads(), Reads()]
    publisher = DirectoryPublisher(trained, policy, rollers, tmp_path)
    publisher.publish(1)
    publisher.publish(2)
    assert [path.name for path in tmp_path.iterdir()] == ["version-2"]
    assert [roller.loaded for roller in rollers] == [[("version-1", 1), ("version-2", 2)]] * 2
    for one, other in zip(trained.parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(one, other)
    DirectoryPublisher(trained, policy, [], tmp_path / "silent").publish(3)
    assert not (tmp_path / "silent").exists()


def test_rollers_in_memory_sample_from_the_trained_weights():
    trained, policy, rollers = tiny_policy(1).model, tiny_policy(0), [Reads(), Reads()]
    MemoryPublisher(trained, policy, rollers).publish(4)
    assert [roller.policy_version for roller in rollers] == [4, 4]
    for one, other in zip(trained.parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(one, other)


class Started:
    """A process that has this exit code; None still runs."""

    def __init__(self, exitcode):
        self.exitcode, self.ended = exitcode, []

    def start(self):
        pass

    def join(self):
        self.ended.append("joined")

    def terminate(self):
        self.ended.append("terminated")


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ([None, None], None),
        ([0, None], None),
        ([1, None], "rank 1 of 3.*exit code 1"),
        ([1, -9], "rank 2 of 3.*SIGKILL"),
        ([0, 3], "rank 2 of 3"),
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
    assert told is None if said is None else re.match(said, told)
    assert [process.ended for process in started] == [["terminated", "joined"]] * 2


class Cluster:
    """Ray, as far as it is asked: nodes with places, and actors that end as they are told to."""

    def __init__(self, *nodes, placed_on=(), ends=()):
        self._nodes = nodes
        self._placed_on = list(placed_on)
        self._ends = dict(enumerate(ends))
        self.places, self.options, self.killed, self.served = None, [], [], []
        self.is_up = False

    def init(self, address):
        self.is_up = True

    def shutdown(self):
        self.is_up = False

    def nodes(self):
        return [
            {
                "NodeID": name,
                "NodeManagerAddress": f"address-{name}",
                "Alive": alive,
                "Resources": resources,
            }
            for name, resources, alive in self._nodes
        ]

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "here")

    def remote(self, **options):
        self.options.append(options)
        number = len(self.options) - 1
        node = self._placed_on[number]

        def serve(environment, duty, rank):
            self.served.append((number, dict(environment), rank))
            return f"serving {number}"

        actor = SimpleNamespace(
            number=number,
            node=SimpleNamespace(remote=lambda: node),
            serve=SimpleNamespace(remote=serve),
        )
        return lambda _: SimpleNamespace(remote=lambda: actor)

    def get(self, what, timeout=None):
        if isinstance(what, list):
            return what
        end = self._ends.get(int(what.split()[1]))
        if isinstance(end, Exception):
            raise end
        return end

    def wait(self, serving, *, num_returns, timeout):
        assert num_returns == len(serving)
        ended = [one for one in serving if int(one.split()[1]) in self._ends]
        return ended, [one for one in serving if one not in ended]

    def kill(self, actor):
        self.killed.append(actor.number)

    def placement_group(self, bundles, strategy):
        self.places = (bundles, strategy)
        return "places"


@pytest.fixture
def on(monkeypatch):
    def cluster(*nodes, **how):
        ray = Cluster(*nodes, **how)
        monkeypatch.setattr(on_ray, "ray", ray)
        monkeypatch.setattr(on_ray, "placement_group", ray.placement_group)
        monkeypatch.setattr(on_ray, "remove_placement_group", lambda places: None)
        monkeypatch.setattr(
            on_ray,
            "PlacementGroupSchedulingStrategy",
            lambda places, placement_group_bundle_index: placement_group_bundle_index,
        )
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


@pytest.mark.parametrize(
    ("count", "said"), [(3, None), (4, "a Ray cluster"), (5, "has 3 on 2 nodes")]
)
def test_a_cluster_with_too_few_places_is_refused(on, count, said):
    nodes = (
        ("here", {"GPU": 2, "CPU": 64}, True),
        ("b", {"GPU": 1}, True),
        ("c", {"CPU": 8}, True),
        ("gone", {"GPU": 9}, False),
    )
    ray = on(*nodes, placed_on=("b", "here", "b", "b"))
    environment = {}
    if said is None:
        with ray_workers(count, torch.device("cuda"), environment=environment):
            assert [options["num_gpus"] for options in ray.options] == [1, 1]
            assert ray.places[0] == [{"GPU": 1.0}] * 2
    else:
        with (
            pytest.raises(TrainingError, match=f"{count} GPUs.*3 on 2 nodes"),
            ray_workers(count, torch.device("cuda"), environment=environment),
        ):
            pass
    assert not ray.is_up


def broke(cause):
    return RayTaskError("serve", "Traceback", cause)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((), None),
        ((None, None), None),
        ((broke(RuntimeError("peer is gone")),), "rank 1 of 3"),
        ((broke(RuntimeError("peer is gone")), broke(ValueError("own fault"))), "rank 2 of 3"),
        ((broke(ValueError("own fault")), RayActorError()), "rank 2 of 3"),
        ((RayActorError(), broke(ValueError("own fault"))), "rank 1 of 3"),
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
        assert told.startswith(said)
        assert "address-b" in told


def test_a_loss_on_this_machine_names_no_node():
    assert "node" not in lost_worker_message(1, 2, "SIGKILL")


@pytest.mark.parametrize(
    ("seconds", "total_s", "rate", "share"),
    [([2.0, 3.0], 10.0, 12.0, 0.25), ([0.0, 0.0], 10.0, 6.0, 0.25), ([0.0, 0.0], 0.0, 60.0, 2.5)],
)
def test_throughput_is_that_of_sampling_where_it_has_its_time(seconds, total_s, rate, share):
    drift = SimpleNamespace(turns=8, drifted=1)
    rollers = [SimpleNamespace(seconds=s, total_tokens=30, drift=drift) for s in seconds]
    loop = SimpleNamespace(seconds=total_s, waited_s=2.5)
    run = TrainingRun(None, loop, rollers, SimpleNamespace(drafted_tokens=0), 200)
    assert run.figures == {
        "rollout_tokens_per_s": rate,
        "learner_wait_share": share,
        "token_drift": 2,
        "compared_turns": 16,
    }


def test_drafts_of_dev_questions_are_counted():
    drift = SimpleNamespace(turns=8, drifted=1)
    common = {"seconds": 1.0, "total_tokens": 30, "drift": drift}
    roller = SimpleNamespace(**common, drafted_tokens=0, accepted_tokens=0)
    dev_roller = SimpleNamespace(**common, drafted_tokens=100, accepted_tokens=97)
    loop = SimpleNamespace(seconds=1.0, waited_s=0.0)
    figures = TrainingRun(None, loop, [roller], dev_roller, 200).figures
    assert (figures["drafted_tokens"], figures["accepted_tokens"]) == (100, 97)
    assert "drafted_tokens" not in TrainingRun(None, loop, [roller], roller, 200).figures


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
        profile = Profile.model_validate(
            {
                "reward": {"outcome": outcome},
                "curriculum": {"screening_rollouts": 0},
                "training": {"group_size": 1, "algorithm": {"preset": "spo"}},
            }
        )
        store = CheckpointStore(tmp_path / f"work{outcome:g}", "run")
        run = build_run(
            profile, inputs, store, Processes(), lambda _, p=profile: lookup_environments(SEARCH, p)
        )
        pool = run.loop.parts.pool
        expected[outcome] = pool.predicted_reward(TASKS[-1].task_id)
    assert expected[2.0] == pytest.approx(2 * expected[1.0])
    assert 0.3 < expected[1.0] < 0.7

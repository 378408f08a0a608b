"""Training with self-play on real artifacts: what is posed is proven, apart, and resumed alike."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from espalier.config import load_profile
from espalier.records import NullTracker, read_tasks
from espalier.stages import train
from tests.benchmarks.brute_force import Store, answers, faults, parsed
from tests.factories.chains import inputs_of
from tests.factories.tracking import KillingTracker
from tests.factories.training import Interrupted

SMOKE = Path(__file__).parents[2] / "pipelines" / "profiles" / "smoke.toml"
SMALLER = (
    "synthesis.train_tasks=120",
    "synthesis.dev_tasks=20",
    "synthesis.heldout_tasks=60",
    "synthesis.trajectories=20",
    "policy.prestage.steps=4",
    "policy.prestage.tokens_per_step=512",
    "warm_start.steps=4",
    "warm_start.trajectories_per_step=4",
    "warm_start.evaluate_every=4",
    "warm_start.dev_questions=4",
    "curriculum.candidates=4",
    "curriculum.screening_rollouts=0",
    "training.dev_questions=4",
    "training.steps=4",
    "training.tasks_per_step=4",
    "training.group_size=4",
    "training.evaluate_every=2",
)
"""The policy learns next to nothing, and so fails: what self-play needs."""
POSING = ("curriculum.refresh_every=1", "self_play.posed_tasks=6", "self_play.rollouts_per_task=2")
ANY_VALUE = "self_play.value_band=[0.0, 1.0]"


def profile_with(*overrides):
    return load_profile(SMOKE, [*SMALLER, *overrides])


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """Everything that training reads; self-play changes none of it."""
    return inputs_of("train", profile_with(), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def evolved(artifacts, tmp_path_factory):
    out = tmp_path_factory.mktemp("evolved") / "trained"
    profile = profile_with('self_play.name="webrl"', ANY_VALUE, *POSING)
    return profile, out, train.run(profile, artifacts, out, NullTracker())


def test_posed_tasks_are_proven_again_and_apart_from_heldout(artifacts, evolved):
    _, out, manifest = evolved
    tasks = read_tasks(out / "posed" / "tasks.jsonl")
    phases = json.loads((out / "posed" / "phases.json").read_text())
    assert [phase["step"] for phase in phases] == [1, 2, 3]
    assert all(p["posed"] == p["kept"] + sum(p["refused"].values()) for p in phases)
    assert manifest.rows["posed_tasks"] == len(tasks) == sum(phase["kept"] for phase in phases) > 0
    store = Store(
        (row["subject"], row["relation"], row["object"])
        for row in pq.read_table(artifacts["knowledge"] / "triples.parquet").to_pylist()
    )
    entities = pq.read_table(artifacts["knowledge"] / "entities.parquet").to_pylist()
    names = {row["entity_id"]: row["name"] for row in entities}
    for task in tasks:
        [answer] = answers(parsed(task.extra["query"]), store)
        assert task.verifier.gold == (names[answer],)
        assert faults(parsed(task.extra["query"]), store) == []
    heldout = read_tasks(artifacts["accepted"] / "tasks" / "heldout.jsonl")
    assert not {t.extra["query"] for t in tasks} & {t.extra["query"] for t in heldout}
    own = {row["name"] for row in entities if row["split"] == "heldout"}
    shown = {row["name"] for row in entities if row["split"] in ("train", "hub")}
    assert not (own - shown) & {name for task in tasks for name in task.extra["entities"]}


def test_killed_training_with_self_play_ends_the_same(artifacts, evolved, tmp_path):
    profile, _, unbroken = evolved
    with pytest.raises(Interrupted):
        train.run(profile, artifacts, tmp_path / "trained", KillingTracker(3))
    resumed = train.run(profile, artifacts, tmp_path / "trained", NullTracker())
    assert resumed.content == unbroken.content


@pytest.mark.parametrize(
    "overrides",
    [
        ['self_play.name="r_zero"'],
        ['self_play.name="webrl"', ANY_VALUE, "training.asynchronous.max_staleness=1"],
        [
            'self_play.name="webrl"', 'self_play.value="critic"',
            'training.algorithm.preset="ppo"', "training.algorithm.filters=[]",
        ],
    ],
    ids=["r_zero", "beside the learner", "critic"],
)  # fmt: skip
def test_every_way_of_self_play_trains_to_the_end(artifacts, tmp_path, overrides):
    overrides = [*overrides, *POSING]
    train.run(profile_with(*overrides), artifacts, tmp_path / "trained", NullTracker())
    phases = json.loads((tmp_path / "trained" / "posed" / "phases.json").read_text())
    assert len(phases) == 3

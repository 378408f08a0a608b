"""Of own knowledge the warm start and reinforcement learning share no fact, and steps fit it."""

from types import SimpleNamespace

import pytest

from espalier.config import KnowledgeConfig, Profile
from espalier.records import NullTracker, read_tasks, write_tasks
from espalier.records.trajectory import read_trajectories
from espalier.stages import filter_curriculum, ingest, synthesize, warm_start
from espalier_search.synthesis.task_making import fact_of
from tests.factories.prose_folder import ProseFolder, write
from tests.factories.storage import artifact
from tests.factories.tracking import Notes


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    directory = tmp_path_factory.mktemp("prose")
    write(ProseFolder(3), directory)
    knowledge = KnowledgeConfig(
        source="folder", path=directory / "texts", questions=directory / "questions.jsonl"
    )
    return Profile(knowledge=knowledge)


@pytest.fixture(scope="module")
def synthetic(profile, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("run")
    ingest.run(profile, {}, scratch / "knowledge", NullTracker())
    inputs = {"knowledge": scratch / "knowledge"}
    synthesize.run(profile, inputs, scratch / "synthetic", NullTracker())
    return scratch / "synthetic"


@pytest.fixture
def left_to_training(profile, synthetic, tmp_path):
    """What an artifact of accepted tasks leaves to training, and what is said of it."""
    curriculum = profile.curriculum.model_copy(update={"enabled": False})
    artifact(tmp_path / "warm_policy")

    def left(accepted):
        notes = Notes()
        inputs = {
            "knowledge": synthetic.with_name("knowledge"),
            "accepted": accepted,
            "warm_policy": tmp_path / "warm_policy",
        }
        unjudged = profile.model_copy(update={"curriculum": curriculum})
        filter_curriculum.run(unjudged, inputs, tmp_path / "out", notes)
        return read_tasks(tmp_path / "out" / "tasks.jsonl"), notes.lines

    return left


def test_no_fact_is_both_demonstrated_and_left_to_training(left_to_training, synthetic):
    tasks = read_tasks(synthetic / "tasks" / "train.jsonl")
    left, lines = left_to_training(synthetic)
    by_id = {task.task_id: task for task in tasks}
    trajectories = read_trajectories(synthetic / "trajectories.parquet")
    shown = {fact_of(by_id[trajectory.task_id]) for trajectory in trajectories}
    assert not shown & {fact_of(task) for task in left}
    assert len(shown) >= 100
    assert len({fact_of(task) for task in left}) >= 0.4 * len({fact_of(task) for task in tasks})
    assert f"{len(left)}" in lines[0]


def test_training_questions_are_made_and_all_splits_keep_their_pairs(synthetic):
    tasks = {
        split: read_tasks(synthetic / "tasks" / f"{split}.jsonl")
        for split in ("train", "dev", "heldout")
    }
    made = [task for task in tasks["train"] if task.metadata.source == "made"]
    assert len(made) >= 300
    asked = [task.question for found in tasks.values() for task in found]
    assert len(set(asked)) == len(asked)
    assert all(task.metadata.source == "own" for task in (*tasks["dev"], *tasks["heldout"]))


def test_where_all_is_demonstrated_training_repeats_it(left_to_training, synthetic, tmp_path):
    shown = {t.task_id for t in read_trajectories(synthetic / "trajectories.parquet")}
    tasks = read_tasks(synthetic / "tasks" / "train.jsonl")
    few = [task for task in tasks if task.task_id in shown][:5]
    write_tasks(tmp_path / "few.jsonl", few)
    files = {
        "tasks/train.jsonl": (tmp_path / "few.jsonl").read_bytes(),
        "trajectories.parquet": (synthetic / "trajectories.parquet").read_bytes(),
    }
    artifact(tmp_path / "few", files)
    left, lines = left_to_training(tmp_path / "few")
    assert left == few
    assert "synthesis.trajectories" in lines[0]


@pytest.mark.parametrize(("sequences", "steps"), [(130, 163), (300, 300), (1, 2)])
def test_no_own_demonstration_is_shown_more_than_twenty_times(profile, sequences, steps):
    shown = SimpleNamespace(sequences=[None] * sequences, sequences_at=lambda per_step, seed: None)
    assert warm_start._plan(profile, shown, lambda: None).steps == steps
    house = Profile()
    assert warm_start._plan(house, shown, lambda: None).steps == house.warm_start.steps

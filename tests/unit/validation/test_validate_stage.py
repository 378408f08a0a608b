import json
import re

import pytest

from espalier.config import Profile, ValidationConfig
from espalier.records import (
    ArtifactError,
    DataError,
    NullTracker,
    RefusedRowsError,
    open_artifact,
    read_tasks,
)
from espalier.records.trajectory import read_trajectories
from espalier.stages import validate as stage
from tests.factories.validation import (
    a_task,
    a_trajectory,
    an_entity,
    knowledge_artifact,
    synthetic_artifact,
)

SPLITS = ("train", "dev", "heldout")


def sound_tasks():
    return [a_task(f"{split}-{n}", split) for split in SPLITS for n in range(4)]


def sound_trajectories():
    return [a_trajectory(f"train-{n}") for n in range(3)]


@pytest.fixture
def validated(tmp_path):
    """Runs the stage on what it is given and returns the artifact's folder."""
    knowledge = knowledge_artifact(
        tmp_path / "knowledge", an_entity("Turin", "heldout"), an_entity("Euro", "hub", "currency")
    )

    def run(tasks, trajectories, out="accepted", **bounds):
        synthetic = synthetic_artifact(tmp_path / "synthetic", tasks, trajectories)
        profile = Profile(validation=ValidationConfig(**bounds))
        inputs = {"knowledge": knowledge, "synthetic": synthetic}
        stage.run(profile, inputs, tmp_path / out, NullTracker())
        return tmp_path / out

    return run


def test_sound_rows_are_published_as_they_came(validated, tmp_path):
    accepted = validated(sound_tasks(), sound_trajectories())
    manifest = open_artifact(accepted)
    assert manifest.rows == {"train": 4, "dev": 4, "heldout": 4, "trajectories": 3}
    for name in ("tasks/train.jsonl", "tasks/heldout.jsonl", "trajectories.parquet", "funnel.json"):
        assert (accepted / name).read_bytes() == (tmp_path / "synthetic" / name).read_bytes()
    report = json.loads((accepted / "validation.json").read_text())
    assert report["verdict"] == "accepted"
    assert report["hub_kinds_exempt_from_splits"] == {"currency": 1}


def test_equal_rows_give_equal_content(validated, tmp_path):
    first = open_artifact(validated(sound_tasks(), sound_trajectories(), out="first"))
    second = open_artifact(validated(sound_tasks(), sound_trajectories(), out="second"))
    assert first.content == second.content


def test_a_repeated_question_leaves_and_takes_its_trajectory_along(validated):
    tasks = [*sound_tasks(), a_task("train-9", question="what is asked by train-0")]
    trajectories = [*sound_trajectories(), a_trajectory("train-9")]
    accepted = validated(tasks, trajectories, max_dropped_share=0.2)
    assert "train-9" not in {t.task_id for t in read_tasks(accepted / "tasks" / "train.jsonl")}
    kept = read_trajectories(accepted / "trajectories.parquet")
    assert [t.task_id for t in kept] == ["train-0", "train-1", "train-2"]
    report = json.loads((accepted / "validation.json").read_text())
    assert report["suites"]["tasks"]["dropped_rows"] == [
        {"row": 4, "task_id": "train-9", "breaks": ["questions_are_unique"]}
    ]


def test_more_dropped_rows_than_allowed_stop_the_run(validated):
    tasks = [*sound_tasks(), a_task("train-9", question="what is asked by train-0")]
    with pytest.raises(DataError, match=r"1 of 13 .*questions_are_unique"):
        validated(tasks, sound_trajectories(), max_dropped_share=0.05)


def test_heldout_entities_in_training_chains_stop_the_run(validated, tmp_path):
    guilty = [a_task(f"train-9{n:02}", entities=("Turin",)) for n in range(12)]
    with pytest.raises(DataError, match="splits_share_no_entity") as caught:
        validated([*sound_tasks(), *guilty], sound_trajectories())
    assert len(re.findall(r"train-9\d\d", str(caught.value))) == 10
    assert str(tmp_path / "validation_failed" / "validation.html") in str(caught.value)
    assert not (tmp_path / "accepted").exists()


def test_a_stopped_run_leaves_a_report_until_it_succeeds(validated, tmp_path):
    failed = tmp_path / "validation_failed"
    with pytest.raises(RefusedRowsError) as caught:
        validated(sound_tasks(), [a_trajectory("dev-0")])
    (fault,) = caught.value.faults
    assert re.match("trajectories: .*tasks_are_train_tasks.*is_train_task.*False in dev-0$", fault)
    assert caught.value.report == failed
    report = json.loads((failed / "validation.json").read_text())
    assert report["verdict"] == "stopped"
    assert "tasks_are_train_tasks" in report["faults"][0]
    assert "is_train_task" in (failed / "validation.html").read_text()
    validated(sound_tasks(), sound_trajectories())
    assert not failed.exists()


def test_dropping_the_last_row_of_a_file_stops_the_run(validated):
    unproven = [a_trajectory("train-0", final="Paris")]
    with pytest.raises(DataError, match=r"trajectories: .*1 rows"):
        validated(sound_tasks(), unproven, max_dropped_share=1.0)


def test_the_page_escapes_what_tasks_say_and_loads_nothing(validated, tmp_path):
    task = a_task("<script>alert(1)</script>", entities=("Turin",))
    with pytest.raises(DataError):
        validated([*sound_tasks(), task], sound_trajectories())
    page = (tmp_path / "validation_failed" / "validation.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?://", page)


def test_truncated_trajectories_are_an_artifact_error(validated, tmp_path):
    validated(sound_tasks(), sound_trajectories())
    path = tmp_path / "synthetic" / "trajectories.parquet"
    path.write_bytes(path.read_bytes()[:100])
    inputs = {"knowledge": tmp_path / "knowledge", "synthetic": tmp_path / "synthetic"}
    with pytest.raises(ArtifactError, match=r"trajectories\.parquet"):
        stage.run(Profile(), inputs, tmp_path / "again", NullTracker())

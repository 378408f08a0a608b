"""A run that grows, is resumed, published or damaged while somebody looks into it."""

import json
import math
import shutil
import threading
import time

import pytest

from espalier.records.episodes import EPISODES
from espalier.records.streams import (
    StreamRecord,
    StreamWriter,
    link_streams,
    name_streams,
    named_streams,
    segments,
)
from espalier_ui import run_index
from espalier_ui.run_index import RunIndex
from espalier_ui.runs import NoRunError
from tests.factories.viewed_run import (
    NOW,
    Viewer,
    notice_record,
    spoiled,
    step_record,
    training_records,
    write_run,
)


@pytest.fixture
def growing(tmp_path):
    """A viewer, and the streams of a run that trains."""
    streams = write_run(tmp_path / "run", running=True)
    viewer = Viewer([tmp_path / "run"], tmp_path)
    yield viewer, streams
    viewer.catalog.close()


def full_disk(*place):
    raise OSError("no space left on device")


def steps_seen(viewer):
    found = viewer.get("runs/run/attempts", source="train", limit=500)["attempts"]
    return [row["step"] for row in found]


def resumed_writer(streams, name, step):
    writer = StreamWriter(streams, name)
    writer.keep_until(step)
    return writer


def test_new_attempts_and_steps_are_followed(growing):
    viewer, streams = growing
    assert viewer.get("runs/run")["state"] == "running"
    assert viewer.get("runs/run/live")["attempts"]["train"] == 24
    resumed_writer(streams, EPISODES, 9).append(training_records(4))
    resumed_writer(streams, "steps", 9).append([step_record(4)])
    assert viewer.get("runs/run/live")["step"] == 4
    assert steps_seen(viewer)[-8:] == [4] * 8
    assert viewer.get("runs/run/steps", **{"from": 4})["steps"] == [4]
    assert viewer.get("runs/run/search", q="lyon")["total"] == 32 + 6


def test_a_resumed_run_shows_no_attempt_twice(growing):
    viewer, streams = growing
    assert steps_seen(viewer) == [1] * 8 + [2] * 8 + [3] * 8
    episodes = resumed_writer(streams, EPISODES, 1)
    resumed_writer(streams, "steps", 1).append([step_record(2, reward=0.9)])
    assert steps_seen(viewer) == [1] * 8
    episodes.append(training_records(2))
    assert steps_seen(viewer) == [1] * 8 + [2] * 8
    assert viewer.get("runs/run/steps", names="reward")["series"]["reward"] == [0.1, 0.9]
    assert viewer.get("runs/run/search", q="lyon", source="train")["total"] == 16


def test_ids_stay_when_a_run_is_published(growing):
    viewer, streams = growing
    name = viewer.get("runs/run/attempts", source="train")["attempts"][9]["id"]
    StreamWriter(streams, EPISODES).keep_until(9)
    writer = resumed_writer(streams, EPISODES, 9)
    writer.finish_segment()
    run = viewer.catalog.get("run").path
    link_streams(streams, run / "trained_policy" / "streams")
    shutil.rmtree(run / ".trained_policy.work")
    assert viewer.get(f"runs/run/attempts/{name}")["step"] == 2
    assert len(steps_seen(viewer)) == 24


def test_notices_of_detectors_are_followed(growing):
    viewer, streams = growing
    found = {"source": "entropy", "since": 2, "attempts": ["train-0-0"], "key": "training.a"}
    resumed_writer(streams, "notices", 9).append([notice_record(3, "action", "lowered", **found)])
    newest = viewer.get("runs/run/notices")["notices"][0]
    assert {name: newest[name] for name in found} == found
    row = {
        "step": 4, "time": NOW, "detector": "kl", "severity": "critical", "since_step": 3,
        "message": "kl rose", "attempts": ["1/t0/0", "1/t0/99"], "key": "", "figure": "kl",
    }  # fmt: skip
    resumed_writer(streams, "notices", 9).append([StreamRecord(row.pop("step"), row)])
    newest = viewer.get("runs/run/notices")["notices"][0]
    assert (newest["source"], newest["level"], newest["key"]) == ("kl", "warning", None)
    assert newest["attempts"] == ["train-0-0"]


@pytest.mark.parametrize("seed", range(12))
def test_damaged_files_are_answered_around(tmp_path, seed):
    streams = write_run(tmp_path / "run")
    paths = sorted(path for path in (tmp_path / "run").rglob("*") if path.is_file())
    path = paths[seed * 7 % len(paths)]
    path.write_bytes(spoiled(path.read_bytes(), seed))
    viewer = Viewer([tmp_path / "run"], tmp_path)
    for route in (
        "/api/runs", "/api/runs/run", "/api/runs/run/steps", "/api/runs/run/notices",
        "/api/runs/run/timeline", "/api/runs/run/attempts?source=train",
        "/api/runs/run/search?q=lyon", "/api/runs/run/tasks/t0",
        "/api/compare?side=run:warm_start&side=run:trained",
    ):  # fmt: skip
        viewer.settle(route)
        assert viewer.ask(route).status_code in (200, 404)
    for row in viewer.get("runs/run/attempts", source="train")["attempts"]:
        for end in ("", "/tokens"):
            answer = viewer.ask(f"/api/runs/run/attempts/{row['id']}{end}")
            assert answer.status_code in (200, 404, 500)
            assert answer.json()
    viewer.catalog.close()
    assert streams.is_dir()


def test_a_run_without_streams_shows_what_it_has(tmp_path):
    from espalier.records.trajectory import write_trajectories
    from tests.factories.viewed_run import attempt

    write_run(tmp_path / "run", steps=1)
    shutil.rmtree(tmp_path / "run" / "trained_policy" / "streams")
    path = tmp_path / "run" / "trained_policy" / "trajectories.parquet"
    write_trajectories(path, [attempt("t0", number) for number in range(5)])
    viewer = Viewer([tmp_path / "run"], tmp_path)
    assert steps_seen(viewer) == [1] * 5
    (source, *_) = viewer.get("runs/run")["sources"]
    assert (source["name"], source["complete"]) == ("train", False)
    write_trajectories(path, [attempt("t0", number) for number in range(7)])
    assert len(steps_seen(viewer)) == 7
    viewer.catalog.close()


@pytest.mark.parametrize("name", ["none", "empty"])
def test_a_folder_without_runs_is_refused_in_words(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoRunError, match="espalier run --out"):
        Viewer([tmp_path / name], tmp_path)


def test_numbers_that_are_none_are_null(tmp_path):
    from tests.factories.viewed_run import EpisodePlace, attempt, episode_record, write_stream

    write_run(tmp_path / "run", steps=1)
    one = attempt("h0", 0, reward={"outcome": math.nan, "format": math.inf})
    streams = tmp_path / "run" / "evaluation" / "streams" / "untrained"
    write_stream(streams, EPISODES, [episode_record(one, EpisodePlace(0, 0, NOW))])
    viewer = Viewer([tmp_path / "run"], tmp_path)
    (row,) = viewer.get("runs/run/attempts", source="untrained")["attempts"]
    assert (row["reward"], row["terms"]) == (None, {"outcome": None, "format": None})
    assert viewer.get(f"runs/run/attempts/{row['id']}")["evidence"][0]["value"] is None
    viewer.catalog.close()


def test_two_runs_of_one_name_have_two_ids(tmp_path):
    for folder in ("a", "b"):
        write_run(tmp_path / folder / "Demo Run", steps=1)
    viewer = Viewer([tmp_path / "a", tmp_path / "b"], tmp_path)
    assert {run["id"] for run in viewer.get("runs")["runs"]} == {"demo-run", "demo-run-2"}
    viewer.catalog.close()


def test_many_segments_are_one_list(tmp_path):
    streams = write_run(tmp_path / "run", steps=1)
    for step in range(2, 6):
        resumed_writer(streams, EPISODES, step).append(training_records(step))
        resumed_writer(streams, EPISODES, step).finish_segment()
    assert len(segments(streams, EPISODES)) == 5
    viewer = Viewer([tmp_path / "run"], tmp_path)
    assert steps_seen(viewer) == sorted(steps_seen(viewer))
    assert len(steps_seen(viewer)) == 40
    viewer.catalog.close()


def test_a_group_is_found_without_reading_its_source(tmp_path):
    write_run(tmp_path / "run", steps=1)
    viewer = Viewer([tmp_path / "run"], tmp_path)
    viewer.settle("runs/run")
    ordered = "ORDER BY number, offset LIMIT 9"
    with viewer.catalog.get("run").index.reading() as connection:
        for conditions, index in (
            ("source = 0 AND step = 1 AND task = 't0'", "by_task"),
            ("source = 0 AND step = 1", "by_step"),
            ("source = 0", "by_place"),
        ):
            query = f"EXPLAIN QUERY PLAN SELECT * FROM attempts WHERE {conditions} {ordered}"
            (plan,) = [row["detail"] for row in connection.execute(query)]
            assert f"INDEX {index} " in plan
    viewer.catalog.close()


def test_two_viewers_with_one_cache_count_attempts_once(tmp_path, monkeypatch):
    write_run(tmp_path / "run")
    read = run_index.read_index

    def slowly(*place):
        found = list(read(*place))
        time.sleep(0.1)
        return iter(found)

    monkeypatch.setattr(run_index, "read_index", slowly)
    indexes = [RunIndex(tmp_path / "run", tmp_path / "cache") for _ in range(3)]
    threads = [threading.Thread(target=one.follow, args=(30.0,)) for one in indexes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    indexes[0].follow(30.0)
    assert indexes[0].state().attempts["train"] == 24
    for one in indexes:
        one.close()


def test_words_are_indexed_once_the_disk_has_room(growing, monkeypatch):
    viewer, _ = growing
    index = viewer.catalog.get("run").index
    with monkeypatch.context() as patch:
        patch.setattr(run_index, "read_line", full_disk)
        index.follow(30.0)
        index.follow(30.0)
        assert (index.state().attempts["train"], index.state().worded) == (24, 0.0)
    assert viewer.get("runs/run/search", q="lyon", source="train")["total"] == 24


def test_a_removed_index_is_made_again(growing, tmp_path):
    viewer, _ = growing
    assert len(steps_seen(viewer)) == 24
    for path in (tmp_path / "cache").rglob("index.sqlite*"):
        path.unlink()
    assert len(steps_seen(viewer)) == 24
    assert viewer.get("runs/run/search", q="lyon", source="train")["total"] == 24


def test_an_evaluation_that_runs_is_followed(tmp_path):
    from tests.factories.viewed_run import EpisodePlace, attempt, episode_record

    write_run(tmp_path / "run", steps=1)
    shutil.rmtree(tmp_path / "run" / "evaluation")
    work = tmp_path / "run" / ".evaluation.work"
    work.mkdir()
    name_streams(work, {"warm_start": work / "ab12.streams"})
    viewer = Viewer([tmp_path / "run"], tmp_path)
    assert viewer.get("runs/run/attempts", source="warm_start")["total"] == 0
    writer = StreamWriter(work / "ab12.streams", EPISODES)
    writer.keep_until(-1)
    for number, task in enumerate(("h0", "h1")):
        writer.append([episode_record(attempt(task, 0), EpisodePlace(0, 0, NOW + number))])
        assert viewer.get("runs/run/attempts", source="warm_start")["total"] == number + 1
        assert viewer.get("runs/run/live")["attempts"]["warm_start"] == number + 1
    assert viewer.get("runs/run")["state"] == "running"
    viewer.catalog.close()


@pytest.mark.parametrize("folder", ["../../elsewhere", "/etc", ".hidden", 7, None])
def test_a_name_of_a_folder_elsewhere_leads_nowhere(tmp_path, folder):
    (tmp_path / "streams.json").write_text(json.dumps({"trained": folder}))
    assert named_streams(tmp_path) == {}
    (tmp_path / "streams.json").write_text("[")
    assert named_streams(tmp_path) == {}

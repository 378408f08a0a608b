"""A run in S3: what is brought, what is not, and what is said where something is missing."""

import hashlib
import json
import shutil

import pytest

from espalier.records import MANIFEST_NAME, StorageError
from espalier.storage.bucket import S3Location
from espalier_ui import remote
from espalier_ui.runs import NoRunError
from tests.factories.storage import artifact, settings
from tests.factories.viewed_run import (
    EPISODES,
    NOW,
    EpisodePlace,
    Viewer,
    attempt,
    episode_record,
    write_run,
    write_stream,
)
from tests.fakes.s3_stand_in import BUCKET, s3_stand_in

URI = f"s3://{BUCKET}/runs/demo"
WEIGHTS = b"w" * 1000
LARGE = 40_000
"""Characters of an attempt's result: blocks are 16 KB in these tests."""


@pytest.fixture
def s3(monkeypatch):
    monkeypatch.setattr(remote, "_BLOCK", 16 << 10)
    monkeypatch.setattr(remote, "_AGAIN_S", 0.0)
    with s3_stand_in() as stand_in:
        for name, value in stand_in.environment.items():
            monkeypatch.setenv(name, value)
        yield stand_in


def publish(stand_in, folder, outputs=("trained_policy", "evaluation", "accepted")):
    """Publish artifacts of a run's folder below URI, each with a file of weights."""
    for output in outputs:
        files = {
            path.relative_to(folder / output).as_posix(): path.read_bytes()
            for path in (folder / output).rglob("*")
            if path.is_file() and path.name != MANIFEST_NAME
        }
        made = folder.with_name("published") / output
        shutil.rmtree(made, ignore_errors=True)
        made.parent.mkdir(exist_ok=True)
        artifact(made, files | {"policy/model.safetensors": WEIGHTS})
        S3Location(settings(stand_in), BUCKET, f"runs/demo/{output}").publish(made)


def write_large_run(folder, attempts=8):
    streams = write_run(folder, steps=1)
    for path in streams.glob("episodes-*"):
        path.unlink()
    large = [
        episode_record(attempt("t0", n, text=f"word{n} " + "x" * LARGE), EpisodePlace(1, n, NOW))
        for n in range(attempts)
    ]
    write_stream(streams, EPISODES, large)
    return streams


def viewed(tmp_path):
    return Viewer([URI], tmp_path / "viewer")


def test_a_run_in_s3_shows_what_its_folder_shows(s3, tmp_path):
    write_run(tmp_path / "demo", steps=2)
    publish(s3, tmp_path / "demo")
    here, there = Viewer([tmp_path / "demo"], tmp_path / "here"), viewed(tmp_path)
    for path in (
        "attempts?source=train", "attempts?source=trained", "groups?source=train&step=1",
        "steps", "notices", "failures?source=trained", "tasks/t0",
    ):  # fmt: skip
        assert there.get(f"runs/demo/{path}") == here.get(f"runs/demo/{path}"), path
    name = there.get("runs/demo/attempts?source=train")["attempts"][3]["id"]
    for end in ("", "/tokens"):
        path = f"runs/demo/attempts/{name}{end}"
        assert there.get(path) == here.get(path)
    (run,) = there.get("runs")["runs"]
    assert run["path"] == URI
    for viewer in (here, there):
        viewer.catalog.close()


def test_only_the_bytes_of_an_attempt_are_brought(s3, tmp_path):
    write_large_run(tmp_path / "demo")
    publish(s3, tmp_path / "demo")
    viewer = viewed(tmp_path)
    path = "/api/runs/demo/attempts?source=train"
    viewer.catalog.get("demo").index.follow(60)
    rows = viewer.ask(path).json()["attempts"]
    assert len(rows) == 8
    contents = next((tmp_path / "viewer" / "cache").glob("s3-*/contents"))
    (marks,) = (one for one in contents.glob("*.blocks") if one.stat().st_size > 4)
    assert sum(marks.read_bytes()) == 1, "lists need the index alone"
    found = viewer.ask(f"/api/runs/demo/attempts/{rows[5]['id']}").json()
    assert found["messages"][2]["content"].startswith("word5 x")
    assert 1 < sum(marks.read_bytes()) < 2 + 2 * -(-2 * LARGE // remote._BLOCK)
    assert not s3.counted("GET", hashlib.sha256(WEIGHTS).hexdigest())
    viewer.catalog.close()


def test_a_search_brings_the_rest(s3, tmp_path):
    write_large_run(tmp_path / "demo")
    publish(s3, tmp_path / "demo")
    viewer = viewed(tmp_path)
    run = viewer.catalog.get("demo")
    run.index.follow(60)
    assert run.index.state().worded < 1
    viewer.ask("/api/runs/demo/search?q=word6")
    assert viewer.get("runs/demo/search", q="word6", source="train")["total"] == 1
    viewer.catalog.close()


def test_what_is_published_meanwhile_is_seen(s3, tmp_path):
    write_run(tmp_path / "demo", steps=1)
    publish(s3, tmp_path / "demo", ["accepted"])
    viewer = viewed(tmp_path)
    run = viewer.catalog.get("demo")
    run.index.follow(60)
    assert run.index.state().attempts == {}
    publish(s3, tmp_path / "demo", ["trained_policy"])
    run.index.follow(60)
    assert run.index.state().attempts == {"train": 8}
    viewer.catalog.close()


def test_a_run_whose_bytes_are_gone_is_told(s3, tmp_path):
    write_large_run(tmp_path / "demo")
    publish(s3, tmp_path / "demo")
    viewer = viewed(tmp_path)
    viewer.catalog.get("demo").index.follow(60)
    row = viewer.ask("/api/runs/demo/attempts?source=train").json()["attempts"][5]
    for key in [key for key in s3.objects if "trained_policy/sha256" in key]:
        del s3.objects[key]
    answer = viewer.ask(f"/api/runs/demo/attempts/{row['id']}")
    assert answer.status_code == 500
    assert "not in S3" in answer.json()["error"]["message"]
    viewer.catalog.close()


@pytest.mark.parametrize(
    ("uri", "error"),
    [(f"s3://{BUCKET}/none", NoRunError), ("s3://UPPER/x", StorageError),
     (f"s3://{BUCKET}", StorageError), ("gs://bucket/x", NoRunError)],
)  # fmt: skip
def test_an_address_without_a_run_is_refused(s3, tmp_path, uri, error):
    with pytest.raises(error):
        Viewer([uri], tmp_path)


def test_a_checkpoint_in_s3_is_not_at_hand(s3, tmp_path):
    write_run(tmp_path / "demo", steps=1)
    policy = tmp_path / "demo" / "trained_policy" / "policy"
    policy.mkdir()
    (policy / "config.json").write_text(json.dumps({}))
    publish(s3, tmp_path / "demo")
    viewer = viewed(tmp_path)
    assert viewer.get("runs/demo/checkpoints") == {"checkpoints": []}
    viewer.catalog.close()

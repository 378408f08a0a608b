"""Records that no run of ours writes, and a damaged cache."""

import json

import pytest

from espalier.records.episodes import EPISODES, EpisodePlace, episode_record
from espalier.records.streams import read_index
from tests.factories.viewed_run import NOW, Viewer, attempt, write_run, write_stream

PAGES = (
    "runs", "runs/run", "runs/run/attempts?source=train", "runs/run/groups?source=train",
    "runs/run/histogram?source=train", "runs/run/groups/parting?source=train&group=1/t0",
    "runs/run/failures?source=train", "runs/run/search?q=lyon", "runs/run/tasks/t0",
    "compare?side=run:train&side=run:trained", "labels/export?form=sft",
)  # fmt: skip


def nested(depth):
    value = "lyon"
    for _ in range(depth):
        value = {"a": value}
    return value


def viewer_of(folder, *, summary=None, **changed):
    """A viewer of a run with one more record, some of whose fields are changed."""
    streams = write_run(folder / "run", steps=1)
    record = episode_record(attempt("t0", 0), EpisodePlace(1, 0, NOW))
    line = json.dumps({"step": 1, **record.content, **changed}).encode() + b"\n"
    (streams / "episodes-000001.jsonl").write_bytes(line)
    if summary is not None:
        entry = [0, len(line), 1, {**record.summary, **summary}]
        (streams / "episodes-000001.index").write_text(json.dumps(entry) + "\n")
    return Viewer([folder / "run"], folder)


def looks(viewer, pages=PAGES):
    """Statuses of the pages, once the index has everything."""
    viewer.settle("runs/run")
    return {viewer.ask(f"/api/{page}").status_code for page in pages}


@pytest.mark.parametrize(
    "changed",
    [
        {"messages": [{"role": [], "content": "lyon"}]},
        {"messages": ["lyon", {"role": "user", "content": "lyon"}]},
        {"reward": {"outcome": 10**400}},
        {"reward": {"outcome": float("inf")}},
        {"mask_runs": [0, (1 << 31) - 1]},
        {"spans": [["sampling", float("nan"), 10**400, 0], [[], 0, 1, 0], ["x", 0, 1, True], 7]},
    ],
    ids=["role", "message", "huge", "infinite", "mask", "spans"],
)
def test_a_hostile_record_spoils_no_page(tmp_path, changed):
    viewer = viewer_of(tmp_path, summary={}, **changed)
    viewer.settle("runs/run")
    put = viewer.ask("/api/labels/run/train-1-0", "PUT", json={"label": "good"})
    assert put.status_code == 200
    assert looks(viewer) == {200}
    assert viewer.ask("/api/runs/run/attempts/train-1-0/tokens").status_code in (200, 500)
    viewer.catalog.close()


@pytest.mark.parametrize("changed", [{"reward": {"outcome": 10**400}}, {"mask_runs": [0, 1 << 40]}])
def test_indexing_goes_on_after_a_hostile_record(tmp_path, changed):
    viewer = viewer_of(tmp_path, **changed)
    looks(viewer)
    new = episode_record(attempt("t1", 0, text="zurich"), EpisodePlace(2, 0, NOW))
    streams = tmp_path / "run" / "evaluation" / "streams" / "untrained"
    write_stream(streams, EPISODES, [new])
    assert viewer.get("runs/run/search", q="zurich")["total"] == 1
    viewer.catalog.close()


def test_a_mask_longer_than_its_tokens_costs_no_memory(tmp_path):
    viewer = viewer_of(tmp_path, summary={}, mask_runs=[0, (1 << 31) - 1])
    viewer.settle("runs/run")
    answer = viewer.ask("/api/runs/run/attempts/train-1-0/tokens")
    assert answer.status_code == 500
    assert "more than" in answer.json()["error"]["message"]
    viewer.catalog.close()


def test_values_deep_in_each_other_are_refused_in_words(tmp_path):
    viewer = viewer_of(tmp_path, summary={}, tool_calls=[{"name": "a", "arguments": nested(900)}])
    assert looks(viewer) == {200}
    assert viewer.refusal("/api/runs/run/attempts/train-1-0") == (500, "unreadable")
    viewer.catalog.close()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("timings.json", json.dumps({"train": {"seconds": 10**400}})),
        ("accepted/tasks/train.jsonl", '{"task_id": "t0", "metadata": "x", "prompt": '
         '[{"content": "q"}], "verifier": {"gold": []}}\n'),
    ],
)  # fmt: skip
def test_a_hostile_file_spoils_no_page(tmp_path, name, content):
    write_run(tmp_path / "run", steps=1)
    (tmp_path / "run" / name).write_text(content)
    viewer = Viewer([tmp_path / "run"], tmp_path)
    assert looks(viewer) == {200}
    viewer.catalog.close()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/runs/run/attempts?source=train&group=%C2%B2/t0", 400),
        (f"/api/runs/run/attempts/train-0-0/messages/{'9' * 5000}", 404),
        ("/static/%00", 404),
        (f"/static/{'a' * 300}", 404),
    ],
    ids=["digit", "number", "zero", "name"],
)
def test_a_hostile_address_is_refused_in_words(tmp_path, path, status):
    write_run(tmp_path / "run", steps=1)
    viewer = Viewer([tmp_path / "run"], tmp_path)
    assert viewer.ask(path).status_code == status
    viewer.catalog.close()


@pytest.mark.parametrize("place", [0, 4096])
def test_a_damaged_index_is_made_anew(tmp_path, place):
    write_run(tmp_path / "run", steps=1)
    viewer = Viewer([tmp_path / "run"], tmp_path)
    viewer.get("runs/run/attempts", source="train")
    viewer.catalog.close()
    (path,) = (tmp_path / "cache").glob("*/index.sqlite")
    for further in ("-wal", "-shm"):
        path.with_name(path.name + further).unlink(missing_ok=True)
    content = bytearray(path.read_bytes())
    content[place : place + 60_000] = b"\xa5" * len(content[place : place + 60_000])
    path.write_bytes(content)
    viewer = Viewer([tmp_path / "run"], tmp_path)
    looks(viewer, PAGES[2:3])
    assert viewer.get("runs/run/attempts", source="train")["total"] == 8
    viewer.catalog.close()


LINKED = (
    "trained_policy/streams/episodes-000000.jsonl",
    "evaluation/streams/trained",
    "accepted/tasks/heldout.jsonl",
    "profile.json",
    "trained_policy",
)


@pytest.mark.parametrize("name", LINKED)
def test_a_link_out_of_the_run_is_not_followed(tmp_path, name):
    write_run(tmp_path / "other", steps=1)
    write_run(tmp_path / "run", steps=1)
    place = tmp_path / "run" / name
    place.rename(tmp_path / "former")
    place.symlink_to(tmp_path / "other" / name)
    viewer = Viewer([tmp_path / "run"], tmp_path)
    whole = {"attempts?source=train": 8, "attempts?source=trained": 3}
    found = {one: viewer.get(f"runs/run/{one}")["total"] for one in whole}
    detail = viewer.get("runs/run")
    gone = {
        LINKED[0]: found != whole, LINKED[1]: found["attempts?source=trained"] == 0,
        LINKED[2]: viewer.get("runs/run/tasks/h0")["gold"] is None,
        LINKED[3]: detail["profile"] == {}, LINKED[4]: found["attempts?source=train"] == 0,
    }  # fmt: skip
    assert gone[name]
    viewer.catalog.close()


def test_a_linked_index_gives_no_summaries(tmp_path):
    streams = write_run(tmp_path / "run", steps=1)
    index = streams / "episodes-000000.index"
    entries = [json.loads(line) for line in index.read_text().splitlines()]
    entries[0][3]["question"] = "secret"
    secret = tmp_path / "secret"
    secret.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    index.unlink()
    index.symlink_to(secret)
    viewer = Viewer([tmp_path / "run"], tmp_path)
    rows = viewer.get("runs/run/attempts", source="train")["attempts"]
    assert len(rows) == 8
    assert "secret" not in {row["question"] for row in rows}
    viewer.catalog.close()


def test_a_torn_end_is_read_once_until_it_grows(tmp_path, monkeypatch):
    streams = write_run(tmp_path / "run", steps=1)
    segment = streams / "episodes-000000.jsonl"
    with segment.open("ab") as stream:
        stream.write(b'{"step": 1, "torn": "' + b"x" * 100_000)
    viewer = Viewer([tmp_path / "run"], tmp_path)
    index = viewer.catalog.all()[0].index
    viewer.settle("runs/run")
    read = []
    monkeypatch.setattr(
        "espalier_ui.run_index.read_index",
        lambda segment, start: read.append(start) or iter(read_index(segment, start)),
    )
    index.follow(60.0)
    assert read == []
    with segment.open("ab") as stream:
        stream.write(b'"}\n')
    index.follow(60.0)
    assert len(read) == 1
    viewer.catalog.close()

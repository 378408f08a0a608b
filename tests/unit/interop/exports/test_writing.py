"""Exports of the artifacts of a run, and of recorded attempts."""

import json
import math
import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from espalier.cli import command_line
from espalier.records import ArtifactError
from espalier.records.trajectory import write_trajectories
from espalier_interop.exports import export
from espalier_interop.exports.writing import ROWS
from tests.factories.attempts import made_attempt
from tests.factories.sample_run import make_run
from tests.factories.viewed_run import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("parent") / "run", last_stage="evaluate")


@pytest.mark.parametrize("chosen", ROWS)
def test_an_artifact_becomes_json_lines(run, tmp_path, chosen):
    out = tmp_path / "out.jsonl"
    done = export(run / "evaluation", out, chosen)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == done.rows == done.trajectories + done.skipped
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.fixture(scope="module")
def viewed(tmp_path_factory):
    """A run with streams: 24 attempts of training and three at held-out questions."""
    folder = tmp_path_factory.mktemp("viewed") / "demo"
    write_run(folder)
    (folder / "profile.json").write_text('{"name": "laptop", "seed": 7}')
    return folder


def test_a_stream_has_all_attempts_of_a_policy(viewed, tmp_path):
    done = export(viewed / "evaluation/streams/trained", tmp_path / "out", "atif")
    assert (done.rows, done.skipped) == (3, 0)
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [row["extra"]["task_id"] for row in rows] == ["h0", "h1", "h2"]
    assert {row["extra"]["split"] for row in rows} == {"heldout"}
    assert rows[0]["agent"]["tool_definitions"][0]["function"]["name"] == "search"


def test_a_stream_of_training_knows_steps_and_numbers(viewed, tmp_path):
    export(viewed / "trained_policy/streams", tmp_path / "out", "atif")
    facts = [json.loads(line)["extra"] for line in (tmp_path / "out").read_text().splitlines()]
    assert [(one["step"], one["sample"]) for one in facts[:8]] == [
        (1, sample) for _ in range(2) for sample in range(4)
    ]


def test_a_run_names_the_streams_in_it(viewed, tmp_path):
    with pytest.raises(ArtifactError, match="evaluation/streams/trained, evaluation/streams/warm"):
        export(viewed, tmp_path / "out", "atif")


def test_a_log_without_the_ending_of_inspect_is_refused(viewed, tmp_path):
    with pytest.raises(ArtifactError, match=r"name it NAME\.eval"):
        export(viewed / "evaluation/streams/trained", tmp_path / "log.json", "inspect")


def test_a_run_knows_its_tools(run, tmp_path):
    export(run / "synthetic", tmp_path / "out", "trl")
    row = json.loads((tmp_path / "out").read_text())
    assert json.loads(row["tools"])[0]["function"]["name"] == "search"


def test_tools_of_an_absent_server_may_be_left_out(run, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    away = {"name": "openenv", "url": "http://127.0.0.1:9", "timeout_s": 1}
    profile = {"name": "laptop", "seed": 7, "environment": away}
    (copied / "profile.json").write_text(json.dumps(profile))
    with pytest.raises(ArtifactError, match="--without-tools"):
        export(copied / "synthetic", tmp_path / "out", "trl")
    export(copied / "synthetic", tmp_path / "out", "trl", with_tools=False)
    assert "tools" not in json.loads((tmp_path / "out").read_text())


def test_recorded_attempts_are_read_file_by_file(tmp_path):
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    for number in range(3):
        attempts = [made_attempt(10 * number + k, f"t{number}{k}") for k in range(4)]
        write_trajectories(recorded / f"trajectories-{number:08d}.parquet", attempts)
    (recorded / ".trajectories-00000003.parquet").write_bytes(b"half a file")
    assert export(recorded, tmp_path / "out", "atif").trajectories == 12
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [row["extra"]["task_id"] for row in rows][:5] == ["t00", "t01", "t02", "t03", "t10"]
    assert "tool_definitions" not in rows[0]["agent"]


def test_only_right_ones_leave_the_others_out(run, tmp_path):
    everything = export(run / "evaluation", tmp_path / "a", "trl")
    right = export(run / "evaluation", tmp_path / "b", "trl", only_right=True)
    assert right.trajectories + right.skipped == everything.trajectories
    assert 0 < right.trajectories < everything.trajectories


def test_a_fault_leaves_the_file_as_it_was(tmp_path):
    folder, out = tmp_path / "recorded", tmp_path / "out.jsonl"
    folder.mkdir()
    broken = made_attempt(1)
    infinite = (*broken.behavior_logprobs[:-1], -math.inf)
    mask = (*broken.action_mask[:-1], 1)
    turns = (replace(broken.turns[-1], action_start=len(mask) - 1, action_end=len(mask)),)
    broken = replace(broken, behavior_logprobs=infinite, action_mask=mask, turns=turns)
    write_trajectories(folder / "trajectories-00000000.parquet", [made_attempt(0), broken])
    out.write_text("before")
    with pytest.raises(ArtifactError, match=r"row 1: .*finite"):
        export(folder, out, "verifiers")
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "recorded"]


def test_a_parquet_file_of_something_else_is_one_error(tmp_path):
    table = pa.table({"task_id": ["t"], "gold": ["x"]})
    pq.write_table(table, tmp_path / "trajectories-00000000.parquet")
    with pytest.raises(ArtifactError, match="row 0: "):
        export(tmp_path, tmp_path / "out", "atif")


@pytest.mark.parametrize(
    ("source", "message"),
    [("", "accepted, evaluation"), ("nothing", "holds no trajectories")],
)
def test_another_folder_is_refused(run, tmp_path, source, message):
    asked = ["data", "export", str(run / source), "--format", "trl", "--out", str(tmp_path / "o")]
    result = CliRunner().invoke(command_line(), asked)
    assert (result.exit_code, message in result.stderr) == (1, True)


def test_an_out_file_that_cannot_be_written_is_one_error(run, tmp_path):
    with pytest.raises(ArtifactError, match="--out"):
        export(run / "evaluation", tmp_path / "no" / "folder" / "out", "trl")

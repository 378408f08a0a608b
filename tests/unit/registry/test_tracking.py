"""Runs in MLflow: nested, resumed, batched, and a clear error where no server answers."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import time

import pytest

import espalier
from espalier.config import Profile
from espalier.records import NullTracker, RegistryError
from espalier.registry import open_parent_run, stage_tracking, tracker_from_environment
from espalier.registry.connection import TrackingTarget, connect, shown, tracking_target
from espalier.registry.tracker import DatasetUse, MlflowTracker, log_datasets
from espalier.registry.tracking import commit_of, operator, viewer_tags
from tests.factories.mlflow_database import empty_database

EPISODE = {
    "task_id": "t1",
    "messages": [
        {"role": "user", "content": "capital of France?"},
        {"role": "assistant", "content": "<search> France capital </search>"},
        {"role": "tool", "content": "France | capital: Paris"},
        {"role": "assistant", "content": "<answer> Paris </answer>"},
    ],
    "reward": {"outcome": 1.0, "format": 0.1},
    "finish_reason": "answered",
    "tools": ["search"],
}


def test_stage_run_is_nested_and_keeps_params_metrics_and_files(parent, tmp_path):
    (tmp_path / "report.txt").write_text("fine")
    with parent.stage("nested") as tracker:
        tracker.params({"steps": 3, "optimizer": {"learning_rate": 0.1}})
        for step in range(3):
            tracker.metrics({"loss": 1.0 / (step + 1)}, step=step)
        tracker.artifact(tmp_path / "report.txt")
        tracker.note("went well")
    run = tracker.run.client.get_run(tracker.run.run_id)
    history = tracker.run.client.get_metric_history(tracker.run.run_id, "loss")
    files = [entry.path for entry in tracker.run.client.list_artifacts(tracker.run.run_id)]
    assert run.data.tags["mlflow.parentRunId"] == parent.run_id
    assert run.data.params == {"steps": "3", "optimizer.learning_rate": "0.1"}
    assert [(metric.step, metric.value) for metric in history] == [(0, 1.0), (1, 0.5), (2, 1 / 3)]
    assert files == ["report.txt"]
    assert run.info.status == "FINISHED"
    assert "went well" in run.data.tags["mlflow.note.content"]


def test_a_resumed_stage_continues_its_first_run(parent, monkeypatch):
    with pytest.raises(ZeroDivisionError), parent.stage("resumed") as first:
        raise ZeroDivisionError
    status_before = first.run.client.get_run(first.run.run_id).info.status
    for name, value in parent.environment.items():
        monkeypatch.setenv(name, value)
    with stage_tracking("resumed", Profile()) as second:
        assert isinstance(second, MlflowTracker)
    assert (status_before, second.run.run_id) == ("FAILED", first.run.run_id)


def test_a_stage_with_other_settings_gets_a_new_run(parent):
    with parent.stage("changed") as first:
        first.params({"steps": 3})
    former = first.run.run_id
    with parent.stage("changed") as second:
        second.params({"steps": 4})
    with parent.stage("changed") as third:
        third.params({"steps": 4})
    assert second.run.run_id not in (former, "")
    assert third.run.run_id == second.run.run_id


def test_trajectory_becomes_one_trace_with_a_span_for_each_turn(parent):
    with parent.stage("traced") as tracker:
        tracker.episodes([EPISODE] * 3)
    with parent.stage("traced") as resumed:
        resumed.episodes([EPISODE] * 30)
    with parent.stage("traced") as full:
        full.episodes([EPISODE])
    traces = tracker.run.client.search_traces(
        locations=[tracker.run.experiment_id], run_id=tracker.run.run_id, max_results=50
    )
    root, first, call, second = sorted(traces[0].data.spans, key=lambda span: span.start_time_ns)
    assert len(traces) == 20
    assert [span.span_type for span in (root, first, call, second)] == [
        "AGENT", "CHAT_MODEL", "TOOL", "CHAT_MODEL",
    ]  # fmt: skip
    assert {span.parent_id for span in (first, call, second)} == {root.span_id}
    assert (call.name, call.outputs) == ("search", {"observation": "France | capital: Paris"})
    assert second.inputs == {"messages": EPISODE["messages"][:3]}
    assert second.outputs == {"choices": [{"message": EPISODE["messages"][3]}]}
    (reward,) = traces[0].info.assessments
    assert (reward.name, reward.value, reward.source.source_type) == ("reward", 1.1, "CODE")
    assert reward.metadata == {"outcome": "1.0", "format": "0.1"}


def test_run_says_what_it_is_and_which_code_made_it(parent):
    parent.tracker.describe("a smoke run")
    tags = parent.tracker.run.client.get_run(parent.run_id).data.tags
    assert tags["mlflow.note.content"] == "a smoke run"
    assert tags["espalier.version"] == espalier.__version__
    assert re.fullmatch(r"[0-9a-f]{40}", tags["mlflow.source.git.commit"])
    assert tags["mlflow.source.git.dirty"] in ("True", "False")
    assert tags["mlflow.user"] == operator() != ""


def test_runs_and_traces_link_to_the_viewer(target, monkeypatch, tmp_path):
    profile = Profile(registry={"viewer": "https://viewer.example/espalier/"})
    tags = viewer_tags(profile, tmp_path / "My Run")
    link = "https://viewer.example/espalier/?run=my-run"
    assert tags == {"espalier.viewer": link}
    parent = open_parent_run(target, "linked", tags)
    with parent.stage("evaluate") as tracker:
        tracker.episodes([{**EPISODE, "task_id": "a&b"}])
    client = tracker.run.client
    assert client.get_run(tracker.run.run_id).data.tags["espalier.viewer"] == link
    (trace,) = client.search_traces(
        locations=[tracker.run.experiment_id], run_id=tracker.run.run_id
    )
    assert trace.info.tags["espalier.viewer"] == f"{link}&view=lineage&task=a%26b"


def test_a_run_without_a_folder_links_to_all_runs(target, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", target.uri)
    profile = Profile(registry={"viewer": "http://127.0.0.1:8123", "experiment": "alone"})
    with stage_tracking("evaluate", profile) as tracker:
        tracker.episodes([EPISODE])
    tags = tracker.run.client.get_run(tracker.run.run_id).data.tags
    assert tags["espalier.viewer"] == "http://127.0.0.1:8123/"


def test_an_address_of_the_viewer_changes_no_digest():
    linked = Profile(registry={"viewer": "http://127.0.0.1:8123"})
    assert linked.digest(["registry"]) == Profile().digest(["registry"])
    with pytest.raises(ValueError, match=r"registry\.viewer|viewer"):
        Profile(registry={"viewer": "viewer.example"})


def test_code_outside_a_checkout_has_no_commit(tmp_path, monkeypatch):
    """A package that is installed inside somebody's project must not take that project's commit."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "__init__.py").touch()
    assert commit_of(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert commit_of(tmp_path) is None


def test_dataset_of_a_run_is_recorded_once(parent):
    used = DatasetUse("accepted", "ab" * 32, "runs/a/accepted", {"train": 12}, "training")
    with parent.stage("fed") as tracker:
        log_datasets(tracker.run, [used])
        log_datasets(tracker.run, [used])
    (found,) = tracker.run.client.get_run(tracker.run.run_id).inputs.dataset_inputs
    assert (found.dataset.name, found.dataset.digest) == ("accepted", "ab" * 16)
    assert json.loads(found.dataset.profile) == {"content": "ab" * 32, "train": 12}


def test_run_injected_by_kubeflow_becomes_the_parent(target, parent, monkeypatch):
    monkeypatch.setenv("MLFLOW_RUN_ID", parent.run_id)
    assert open_parent_run(target, "another", {}).run_id == parent.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with pytest.raises(RegistryError, match=r"0{32}"):
        open_parent_run(target, "another", {})


def test_the_environment_names_the_server_or_none(monkeypatch, tmp_path):
    assert isinstance(tracker_from_environment("train", Profile()), NullTracker)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    target = tracking_target(tmp_path / "mlflow.db", "tests")
    assert (target.uri, target.artifact_location) == ("http://tracking:5000", None)


def test_an_unreachable_server_is_an_error_within_seconds(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://name:secret@127.0.0.1:9")
    started = time.monotonic()
    with pytest.raises(RegistryError, match=r"127\.0\.0\.1:9") as refusal:
        tracker_from_environment("train", Profile())
    assert time.monotonic() - started < 5.0
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("https://me:secret@host:5000/x", "https://host:5000/x"),
        ("http://host:5000/x@y", "http://host:5000/x@y"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
    ],
)
def test_a_password_alone_is_not_shown(uri, told):
    assert shown(uri) == told


def test_database_that_is_no_database_is_a_clear_error(tmp_path):
    (tmp_path / "mlflow.db").write_text("not a database at all, " * 100)
    with pytest.raises(RegistryError, match=r"mlflow.db"):
        connect(TrackingTarget(f"sqlite:///{tmp_path}/mlflow.db", "tests").uri)


@pytest.mark.slow
def test_an_incomplete_database_of_a_killed_process_is_not_used(tmp_path):
    """MLflow cannot open a database again whose creation was killed between two tables."""
    draft = tmp_path / ".mlflow.db.draft"
    with sqlite3.connect(draft) as half_made:
        half_made.execute("CREATE TABLE experiments (experiment_id INTEGER)")
    client = connect(f"sqlite:///{tmp_path}/mlflow.db")
    assert client.get_experiment_by_name("none yet") is None
    assert not draft.exists()


NAMES = [
    "outcome", "f1@5", "a//b", "/a", "a/", "..", "a/../b", "./a", "é", "漢", "a\nb",
    "x" * 900, "x" * 901, "",
    "a b.c:d-e/f", "50%", "\U0001f600", "\ud800",
]  # fmt: skip


def test_any_name_is_recorded_and_none_holds_the_others_back(parent):
    with parent.stage("train") as tracker:
        tracker.metrics(dict.fromkeys(NAMES, 1.0), step=1)
        tracker.metrics({"dev_em": 0.5}, step=1)
    run = tracker.run.client.get_run(tracker.run.run_id)
    found = run.data.metrics
    assert run.info.status == "FINISHED"
    assert found["dev_em"] == 0.5
    assert found.keys() >= {"outcome", "a b.c:d-e/f", "f1:40:5"}
    assert len(found) == len(NAMES) + 1, "no two names became one"


@pytest.mark.parametrize("given", [None, "http://mlflow.example:5000"])
def test_a_run_leaves_no_address_to_the_next(tmp_path, monkeypatch, given):
    if given:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    for name in ("one", "another"):
        connect(f"sqlite:///{empty_database(tmp_path / f'{name}.db')}")
        assert os.environ.get("MLFLOW_TRACKING_URI") == given

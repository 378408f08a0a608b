"""How runs of MLflow end, and which run a stage goes on in."""

from __future__ import annotations

from unittest import mock

import pytest

from espalier.config import Profile
from espalier.records import NullTracker, RegistryError
from espalier.registry import TrackingTarget, open_parent_run, tracker_from_environment
from espalier.registry.connection import connect, experiment_id
from espalier.registry.tracker import MlflowTracker
from espalier.registry.tracking import mark_killed


def state(tracker):
    return tracker.run.client.get_run(tracker.run.run_id).info.status


def left_running(parent, stage):
    """A stage whose process was lost before it could end its run."""
    with mock.patch.object(MlflowTracker, "finish"):
        return parent.stage(stage).__enter__()


@pytest.mark.parametrize(
    ("status", "of_lost"), [("FINISHED", "RUNNING"), ("FAILED", "FAILED"), ("KILLED", "KILLED")]
)
def test_a_run_that_did_not_finish_ends_those_below_it(target, status, of_lost):
    parent = open_parent_run(target, "lost", {})
    with parent.stage("done") as done:
        done.note("well")
    lost = left_running(parent, "lost")
    parent.finish(status)
    found = [state(tracker) for tracker in (done, lost, parent.tracker)]
    assert found == ["FINISHED", of_lost, status]


def test_a_run_is_marked_killed_with_all_below_it(target):
    parent = open_parent_run(target, "stopped", {})
    running = left_running(parent, "running")
    parent.mark_killed()
    mark_killed(NullTracker())
    assert (state(parent.tracker), state(running)) == ("KILLED", "KILLED")


def test_a_run_goes_on_and_takes_the_new_tags(target):
    parent = open_parent_run(target, "goes on", {"espalier.profile": "smoke"})
    parent.finish("FAILED")
    again = open_parent_run(target, "goes on", {"espalier.profile": "laptop"}, parent.run_id)
    tags = again.tracker.run.client.get_run(again.run_id).data.tags
    assert (again.run_id, state(again.tracker)) == (parent.run_id, "RUNNING")
    assert tags["espalier.profile"] == "laptop"
    assert "espalier.continues" not in tags


def test_a_deleted_run_is_continued_in_a_new_one(target, monkeypatch):
    parent = open_parent_run(target, "deleted", {})
    parent.tracker.run.client.delete_run(parent.run_id)
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)  # what the caller names comes first
    again = open_parent_run(target, "deleted", {}, parent.run_id)
    tags = again.tracker.run.client.get_run(again.run_id).data.tags
    assert again.run_id != parent.run_id
    assert tags["espalier.continues"] == parent.run_id


def test_a_stage_without_a_parent_stands_alone(target, monkeypatch):
    connect(target.uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", target.uri)
    tracker = tracker_from_environment("train", Profile())
    client = tracker.run.client
    assert tracker.run.parent_run_id is None
    assert client.get_experiment(tracker.run.experiment_id).name == "espalier"
    assert client.get_run(tracker.run.run_id).data.tags["espalier.stage"] == "train"


def test_an_experiment_is_made_once_and_not_after_its_deletion(target):
    client = connect(target.uri)
    mine = TrackingTarget(target.uri, "mine")
    made = experiment_id(client, mine)
    assert experiment_id(client, mine) == made
    assert client.get_experiment(made).artifact_location == target.artifact_location
    client.delete_experiment(made)
    with pytest.raises(RegistryError, match="mine"):
        experiment_id(client, mine)


def test_a_database_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "mlflow.db"
    target = TrackingTarget(f"sqlite:///{path}?timeout=5", "mine")
    assert target.missing_database == path
    assert target.artifact_location == str(tmp_path.resolve() / "mlartifacts")
    path.touch()
    assert target.missing_database is None
    server = TrackingTarget("http://mlflow:5000", "mine")
    assert (server.missing_database, server.artifact_location) == (None, None)


def turned_into_an_error(interruption):
    try:
        raise interruption
    except BaseException:  # noqa: BLE001 (as libraries do)
        raise RuntimeError("a callback failed")  # noqa: B904


@pytest.mark.parametrize(
    ("error", "status"), [(ZeroDivisionError(), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_an_interruption_turned_into_an_error_is_one(target, error, status):
    parent = open_parent_run(target, "stopped", {})
    with pytest.raises(type(error)), parent.stage("one") as plain:
        raise error
    with pytest.raises(RuntimeError), parent.stage("validate") as turned:
        turned_into_an_error(error)
    assert [state(plain), state(turned)] == [status] * 2

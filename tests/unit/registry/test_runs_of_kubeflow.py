"""Where stages of Kubeflow lie: with its MLflow plugin below the task, without it below the run."""

from __future__ import annotations

import contextlib
import threading

import pytest
from requests import RequestException, Response

from espalier.config import Profile
from espalier.records import CompositeTracker, NullTracker, RegistryAwayError, RegistryError
from espalier.registry import open_parent_run, stage_tracking, tracking
from espalier.registry.connection import connect, experiment_id, reaching
from espalier.registry.tracking import mark_killed
from espalier.stages.register import run

RUN_TAG = "kubeflow.run_id"


@pytest.fixture
def kubeflow(target, monkeypatch, request):
    """A step's environment without the plugin; the id of its run."""
    monkeypatch.setattr(tracking, "_SETTLE_S", 0.0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", target.uri)
    monkeypatch.setenv("ESPALIER_RUN_ID", f"run-of-{request.node.name}")
    return f"run-of-{request.node.name}"


@pytest.fixture
def client(target):
    return connect(target.uri)


def runs_of(client, kubeflow_run):
    (experiment,) = [e for e in client.search_experiments() if e.name == "espalier"]
    query = f"tags.`{RUN_TAG}` = '{kubeflow_run}'"
    return client.search_runs([experiment.experiment_id], query)


def test_stages_lie_below_one_parent_that_ends_with_the_last(client, kubeflow):
    stages, statuses = [], []
    for name in ("ingest", "synthesize", "register"):
        with stage_tracking(name, Profile(name="mine")) as tracker:
            stages.append(tracker.run)
        (parent,) = runs_of(client, kubeflow)
        statuses.append(parent.info.status)
    assert {stage.parent_run_id for stage in stages} == {parent.info.run_id}
    assert parent.info.run_name == parent.data.tags["espalier.profile"] == "mine"
    assert statuses == ["RUNNING", "RUNNING", "FINISHED"]
    assert kubeflow in parent.data.tags["mlflow.note.content"]


@pytest.mark.parametrize(
    ("error", "status"), [(ZeroDivisionError, "FAILED"), (KeyboardInterrupt, "KILLED")]
)
def test_a_stage_that_fails_ends_the_parent_meanwhile(client, kubeflow, error, status):
    with pytest.raises(error), stage_tracking("ingest", Profile()):
        raise error
    (failed,) = runs_of(client, kubeflow)
    with stage_tracking("ingest", Profile()):
        (again,) = runs_of(client, kubeflow)
    assert (failed.info.status, again.info.status) == (status, "RUNNING")


def test_a_stage_that_is_forced_to_end_ends_the_parent(client, kubeflow):
    with stage_tracking("ingest", Profile()) as tracker:
        mark_killed(tracker)
        (parent,) = runs_of(client, kubeflow)
    assert parent.info.status == "KILLED"


def test_two_steps_at_once_agree_on_one_parent(client, kubeflow, target, monkeypatch):
    """Both look before either has made one; the pause lets both see both."""
    experiment_id(client, tracking.TrackingTarget(target.uri, "espalier"))
    monkeypatch.setattr(tracking, "_SETTLE_S", 1.0)
    both_looked = threading.Barrier(2)
    looks = threading.local()
    oldest = tracking._oldest

    def looking(*given):
        found = oldest(*given)
        if not getattr(looks, "done", False):
            looks.done = True
            both_looked.wait(20)
        return found

    monkeypatch.setattr(tracking, "_oldest", looking)
    parents = []

    def step(name):
        with stage_tracking(name, Profile()) as tracker:
            parents.append(tracker.run.parent_run_id)

    threads = [threading.Thread(target=step, args=(name,)) for name in ("ingest", "validate")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (kept,) = runs_of(client, kubeflow)
    assert parents == [kept.info.run_id] * 2


def test_a_stage_lies_below_the_task_of_the_plugin(client, target, kubeflow, monkeypatch):
    of_run = open_parent_run(target, "kfp run", {})
    task = client.create_run(
        of_run.tracker.run.experiment_id, tags={"mlflow.parentRunId": of_run.run_id}
    )
    monkeypatch.setenv("MLFLOW_RUN_ID", task.info.run_id)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", task.info.experiment_id)
    with stage_tracking("register", Profile()) as tracker:
        stage = tracker.run
    assert (stage.parent_run_id, stage.pipeline_run_id) == (task.info.run_id, of_run.run_id)
    assert stage.experiment_id == task.info.experiment_id
    assert client.get_run(task.info.run_id).info.status == "RUNNING", "Kubeflow ends it"


def task_of_plugin(client, of_run, name, monkeypatch, part=None):
    """Kubeflow's plugin makes the run of a task, and names it in the step's environment.

    The task is in the whole pipeline, or in a part of it, whose run the plugin ends at once.
    """
    experiment = of_run.tracker.run.experiment_id
    tags = {"mlflow.parentRunId": part or of_run.run_id}
    task = client.create_run(experiment, tags=tags, run_name=name).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", task)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
    return task


def test_stages_of_a_nested_pipeline_belong_to_the_whole(client, target, kubeflow, monkeypatch):
    of_run = open_parent_run(target, "kfp run", {})
    part = task_of_plugin(client, of_run, "training", monkeypatch)
    client.set_terminated(part, "FINISHED")
    task = task_of_plugin(client, of_run, "train", monkeypatch, part)
    with stage_tracking("train", Profile()) as tracker:
        stage = tracker.run
    assert (stage.parent_run_id, stage.pipeline_run_id) == (task, of_run.run_id)
    assert client.get_run(task).info.status == "RUNNING", "Kubeflow ends it"


@pytest.mark.parametrize("how", ["in time", "at once"])
def test_a_stopped_stage_ends_the_run_of_its_task(client, target, kubeflow, monkeypatch, how):
    """Kubeflow looks for runs to end below those that have not ended, and a part's has."""
    of_run = open_parent_run(target, "kfp run", {})
    task = task_of_plugin(client, of_run, "train", monkeypatch)
    with contextlib.suppress(KeyboardInterrupt), stage_tracking("train", Profile()) as tracker:
        if how == "at once":
            mark_killed(tracker)
            assert client.get_run(task).info.status == "KILLED"
        raise KeyboardInterrupt
    assert client.get_run(task).info.status == "KILLED"
    assert client.get_run(of_run.run_id).info.status == "RUNNING", "Kubeflow ends it"


def below(client, of_run, run_id):
    query = f"tags.`mlflow.parentRunId` = '{run_id}'"
    return client.search_runs([of_run.tracker.run.experiment_id], query)


def lost_stage(steps):
    """A stage whose pod is lost after these steps; the id of its run."""
    with contextlib.suppress(KeyboardInterrupt), stage_tracking("train", Profile()) as tracker:
        tracker.params({"steps": 9})
        for step in steps:
            tracker.metrics({"loss": float(step)}, step=step)
        raise KeyboardInterrupt
    return tracker.run.run_id


def test_a_retried_task_keeps_the_stages_run(client, target, kubeflow, monkeypatch):
    """A retried pod has its first one's variables; a retried run's drivers make new task runs.

    So does Kubeflow Pipelines 2.17; kubeflow/pipelines#13262 asks for the first one again.
    """
    of_run = open_parent_run(target, "kfp run", {})
    task = task_of_plugin(client, of_run, "train", monkeypatch)
    attempts = [lost_stage(range(2)), lost_stage(range(2, 4))]
    again = task_of_plugin(client, of_run, "train", monkeypatch)
    attempts.append(lost_stage(range(4, 5)))
    newest = task_of_plugin(client, of_run, "train", monkeypatch)
    with stage_tracking("train", Profile()) as tracker:
        tracker.metrics({"loss": 5.0}, step=5)
        stage = tracker.run
    assert {stage.run_id, *attempts} == {stage.run_id}
    assert (stage.parent_run_id, stage.pipeline_run_id) == (newest, of_run.run_id)
    nested = [[run.info.run_id for run in below(client, of_run, t)] for t in (task, again, newest)]
    assert nested == [[], [], [stage.run_id]]
    assert client.get_run(stage.run_id).info.status == "FINISHED"
    history = client.get_metric_history(stage.run_id, "loss")
    assert [entry.step for entry in history] == list(range(6))


def test_other_tasks_runs_and_settings_keep_their_own(client, target, kubeflow, monkeypatch):
    first, other = (open_parent_run(target, name, {}) for name in ("kfp run", "another"))
    made = []
    for of_run, name in ((first, "train"), (first, "train-2"), (other, "train")):
        task = task_of_plugin(client, of_run, name, monkeypatch)
        made.append(lost_stage([1]))
        assert [run.info.run_id for run in below(client, of_run, task)] == made[-1:]
    again = task_of_plugin(client, first, "train", monkeypatch)
    with stage_tracking("train", Profile()) as tracker:
        tracker.params({"steps": 10})
        made.append(tracker.run.run_id)
    assert len(set(made)) == 4
    runs = {run.info.run_id: run.data.tags for run in below(client, first, again)}
    assert runs.keys() == {made[0], made[3]}
    assert runs[made[0]]["espalier.superseded_by"] == made[3]


def test_an_experiment_given_by_id_is_used(client, target, kubeflow, monkeypatch):
    given = experiment_id(client, tracking.TrackingTarget(target.uri, "by id"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", given)
    with stage_tracking("ingest", Profile()) as tracker:
        assert tracker.run.experiment_id == given
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "999999")
    with pytest.raises(RegistryError, match="MLFLOW_EXPERIMENT_ID=999999"):
        stage_tracking("ingest", Profile()).__enter__()


def test_registering_opens_no_second_run(bench, client, kubeflow):
    with stage_tracking("register", bench.profile) as tracked:
        both = CompositeTracker(NullTracker(), tracked)
        run(bench.profile, bench.inputs(0.6), bench.root / "out", both)
    (parent,) = runs_of(client, kubeflow)
    query = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    nested = client.search_runs([parent.info.experiment_id], query)
    assert [(one.info.run_id, one.info.status) for one in nested] == [
        (tracked.run.run_id, "FINISHED")
    ]
    assert bench.model.version("challenger").run_id == parent.info.run_id
    assert parent.info.status == "FINISHED"


def test_a_run_for_registering_alone_ends_with_it(bench, client, kubeflow, monkeypatch):
    monkeypatch.delenv("ESPALIER_RUN_ID")
    run(bench.profile, bench.inputs(0.6), bench.root / "out", NullTracker())
    version = bench.model.version("challenger")
    assert client.get_run(version.run_id).info.status == "FINISHED"


def test_only_a_server_without_answer_is_away(target, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(RegistryAwayError):
        stage_tracking("ingest", Profile()).__enter__()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", target.uri)
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with pytest.raises(RegistryError, match=r"0{32}") as refused:
        stage_tracking("ingest", Profile()).__enter__()
    assert not isinstance(refused.value, RegistryAwayError)


@pytest.mark.parametrize(("status", "is_away"), [(None, True), (503, True), (403, False)])
def test_a_broken_transfer_means_away_unless_it_was_refused(target, status, is_away):
    answer = Response()
    answer.status_code = status
    error = RequestException("cut", response=None if status is None else answer)
    with pytest.raises(RegistryError) as raised, reaching(target.uri, "read a file"):
        raise error
    assert isinstance(raised.value, RegistryAwayError) == is_away

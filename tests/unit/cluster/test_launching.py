import os
import signal
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from espalier.cluster import launching
from espalier.cluster.launching import StepTerminated, launch
from espalier.cluster.objects.job import OWNER_VARIABLES, RUN_ID_VARIABLE
from espalier.cluster.objects.ray_job import RAY_JOB
from espalier.cluster.objects.train_job import TRAIN_JOB
from espalier.records import ClusterError
from tests.fakes.launched_stand_in import launched_stand_in, state, trained
from tests.unit.cluster.objects.samples import NODES, TRAINER

COMMAND = ("espalier", "step", "train")
OWNER = ("batch/v1", "Job", "r17-train", "6c8f2b1e")
NAME, TRAIN_JOB_NAME = "r17-train-ray", "tj-r17-train"
every_kind = pytest.mark.parametrize(
    ("kind", "name", "running", "complete"),
    [
        (RAY_JOB, NAME, state("Running", "RUNNING"), state("Complete", "SUCCEEDED")),
        (TRAIN_JOB, TRAIN_JOB_NAME, trained(active=1), trained(Complete="True")),
    ],
    ids=["RayJob", "TrainJob"],
)


@contextmanager
def soon(call, *arguments):
    """Something happens to the launcher a little later."""
    timer = threading.Timer(0.3, call, arguments)
    timer.start()
    yield
    timer.join()


def terminate(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(launching, "_POLL_S", 0.02)
    monkeypatch.setattr(launching, "RETRIES", replace(launching.RETRIES, first_pause_s=0.01))
    with launched_stand_in(tmp_path) as stand_in:
        yield stand_in


def launched(cluster, logged=None, kind=RAY_JOB, **changes):
    environment = {
        "KUBECONFIG": str(cluster.kubeconfig),
        RUN_ID_VARIABLE: "r17",
        **dict(zip(OWNER_VARIABLES, OWNER, strict=True)),
        **changes,
    }
    lines = [] if logged is None else logged
    settings = NODES if kind is RAY_JOB else TRAINER
    return launch(
        kind, "train", COMMAND,
        processes=8, settings=settings, environment=environment, log=lines.append,
    )  # fmt: skip


def test_a_finished_ray_job_is_left_to_kuberay(cluster):
    running = state("Running", "RUNNING")
    cluster.script = [
        None, state("Initializing"), running, running, state("Complete", "SUCCEEDED"),
    ]  # fmt: skip
    logged = []
    status = launched(cluster, logged, MLFLOW_RUN_ID="0f1e", AWS_SECRET_ACCESS_KEY="hush")
    assert status.has_succeeded
    lines = ("New", "Initializing", "Running RUNNING", "Complete SUCCEEDED")
    assert logged == [f"RayJob {NAME}: {line}" for line in lines]
    assert cluster.deleted == []
    manifest = cluster.objects[NAME]
    assert manifest["spec"]["entrypoint"] == "espalier step train"
    (owner,) = manifest["metadata"]["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"], owner["name"], owner["uid"]) == OWNER
    given = head_variables(cluster)
    assert (given["MLFLOW_RUN_ID"], given["ESPALIER_TRAINER"]) == ("0f1e", "rayjob")
    assert "hush" not in str(manifest)


def head_variables(cluster):
    head = cluster.objects[NAME]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    return {entry["name"]: entry.get("value") for entry in head["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("kind", "ended"),
    [
        (RAY_JOB, state("Failed", "FAILED", "driver exited with 1")),
        (RAY_JOB, state("Failed", "", "Submitter completed but Ray job not found in RayCluster.")),
        (RAY_JOB, state("Complete", "FAILED")),
        (RAY_JOB, state("Complete", "STOPPED")),
        (RAY_JOB, state("ValidationFailed", "", "no such field")),
        (TRAIN_JOB, trained(Failed="True", message="jobset failed")),
    ],
)
def test_a_job_that_failed_is_told_from_one_that_succeeded(cluster, kind, ended):
    cluster.script = [ended]
    status = launched(cluster, kind=kind)
    assert (status.has_ended, status.has_succeeded) == (True, False)
    assert status.message == ended.get("message", "jobset failed")


@every_kind
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_launcher_deletes_its_job(cluster, kind, name, running, complete, number):
    cluster.script = [running]
    before = signal.getsignal(number)
    with soon(terminate, number), pytest.raises(StepTerminated) as caught:
        launched(cluster, kind=kind)
    assert caught.value.number == number
    ((deleted, options),) = cluster.deleted
    assert (deleted, options["propagationPolicy"]) == (name, "Background")
    assert options["preconditions"]["uid"].startswith("uid-")
    assert signal.getsignal(number) is before


def test_cleaning_up_survives_an_api_server_that_restarts(cluster):
    cluster.script = [state("Running", "RUNNING")]

    def send_away():
        cluster.faults += [503, "drop", 500]
        terminate()

    with soon(send_away), pytest.raises(StepTerminated):
        launched(cluster)
    assert [name for name, _ in cluster.deleted] == [NAME]


def test_a_new_launcher_pod_continues_the_ray_job(cluster):
    cluster.script = [state("Complete", "SUCCEEDED")]
    launched(cluster)
    assert launched(cluster).has_succeeded
    assert cluster.requests.count("POST") == 2
    assert list(cluster.objects) == [NAME]


def test_a_ray_job_of_another_launcher_is_untouched(cluster):
    cluster.script = [state("Complete", "SUCCEEDED")]
    launched(cluster, **{OWNER_VARIABLES[3]: "another-uid"})
    with pytest.raises(ClusterError, match="of another owner; delete it"):
        launched(cluster)
    assert list(cluster.objects) == [NAME]


def test_a_ray_job_deleted_by_others_is_an_error(cluster):
    cluster.script = [state("Running", "RUNNING")]
    with soon(cluster.objects.clear), pytest.raises(ClusterError, match="was deleted"):
        launched(cluster)


POD = ("v1", "Pod", "data-to-model-x-train-1", "pod-uid-1")
WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w1", "uid": "w-uid"}


def step_pod(cluster, pod=POD, *, owners=(WORKFLOW | {"controller": True},)):
    """A step of Kubeflow: its pod at the API server, and the variables that name it."""
    _, _, name, uid = pod
    path = f"/api/v1/namespaces/{NODES.pipeline_namespace}/pods/{name}"
    cluster.others[path] = {"metadata": {"name": name, "uid": uid, "ownerReferences": [*owners]}}
    return dict(zip(OWNER_VARIABLES, pod, strict=True))


@every_kind
def test_a_job_of_kubeflow_belongs_to_the_workflow(cluster, kind, name, running, complete):
    cluster.script = [None, complete]
    assert launched(cluster, kind=kind, **step_pod(cluster)).has_succeeded
    (owner,) = cluster.objects[name]["metadata"]["ownerReferences"]
    assert {key: owner[key] for key in WORKFLOW} == WORKFLOW
    with pytest.raises(ClusterError, match="no controller"):
        launched(cluster, kind=kind, **step_pod(cluster, owners=()))


def test_a_stopped_kubeflow_step_leaves_its_ray_job(cluster):
    cluster.script = [state("Running", "RUNNING")]
    with soon(terminate), pytest.raises(StepTerminated):
        launched(cluster, **step_pod(cluster))
    assert cluster.deleted == []
    # the next attempt is another pod of the same Workflow
    cluster.script = [state("Running", "RUNNING"), state("Complete", "SUCCEEDED")]
    second = step_pod(cluster, ("v1", "Pod", "data-to-model-x-train-2", "pod-uid-2"))
    assert launched(cluster, **second).has_succeeded
    assert cluster.deleted == []


@pytest.mark.parametrize("is_kubeflow", [True, False])
def test_another_attempt_replaces_the_ray_job_that_failed(cluster, is_kubeflow):
    cluster.script = [state("Failed", "FAILED")]
    variables = step_pod(cluster) if is_kubeflow else {}
    assert not launched(cluster, **variables).has_succeeded
    # the failed job is read twice before it is deleted
    cluster.script = [state("Failed", "FAILED")] * 2 + [state("Complete", "SUCCEEDED")]
    assert launched(cluster, **variables).has_succeeded
    assert [name for name, _ in cluster.deleted] == [NAME]


def test_a_launcher_waits_for_a_job_under_deletion(cluster):
    cluster.script = [state("Complete", "SUCCEEDED")]
    variables = step_pod(cluster)
    launched(cluster, **variables)
    cluster.objects[NAME]["metadata"]["deletionTimestamp"] = "2026-03-04T12:00:00Z"
    timer = threading.Timer(0.2, cluster.objects.clear)
    timer.start()
    assert launched(cluster, **variables).has_succeeded
    timer.join()
    assert "deletionTimestamp" not in cluster.objects[NAME]["metadata"]


def test_a_job_that_is_not_deleted_in_time_is_named(cluster, monkeypatch):
    monkeypatch.setattr(launching, "_GONE_WITHIN_S", 0.1)
    cluster.script = [state("Complete", "SUCCEEDED")]
    variables = step_pod(cluster)
    launched(cluster, **variables)
    cluster.objects[NAME]["metadata"]["deletionTimestamp"] = "2026-03-04T12:00:00Z"
    with pytest.raises(ClusterError, match=r"was not deleted in 0\.1 s"):
        launched(cluster, **variables)


def test_ray_pods_know_run_and_tracking_server(cluster):
    cluster.script = [state("Complete", "SUCCEEDED")]
    for variables, run_id in (({}, None), (step_pod(cluster), "r17")):
        cluster.objects.clear()
        launched(cluster, MLFLOW_TRACKING_URI="http://mlflow:5000", **variables)
        given = head_variables(cluster)
        assert given.get(RUN_ID_VARIABLE) == run_id  # the id of a Job is none of Kubeflow's
        assert given["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"


def test_a_refusal_has_the_servers_message(cluster):
    cluster.faults = [403]
    with pytest.raises(ClusterError, match=r"HTTP 403 .*asked for by the test") as caught:
        launched(cluster)
    assert "a-token-of-mine" not in str(caught.value)


def test_a_step_outside_a_job_or_cluster_launches_nothing(cluster, monkeypatch):
    for missing in (RUN_ID_VARIABLE, *OWNER_VARIABLES):
        with pytest.raises(ClusterError, match=missing):
            launched(cluster, **{missing: ""})
    variables = dict(zip(OWNER_VARIABLES, POD, strict=True))
    with pytest.raises(ClusterError, match=r"kubernetes\.pipeline_namespace"):
        launched(cluster, **variables)  # a pod of another namespace
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="KUBECONFIG"):
        launched(cluster, KUBECONFIG="")
    assert cluster.objects == {}


def test_a_train_job_is_followed_through_suspension_and_progress(cluster):
    cluster.script = [
        trained(),
        trained(Suspended="True"),
        trained(active=1, Suspended="False"),
        trained(active=1, progress=40),
        trained(Complete="True"),
    ]
    logged = []
    assert launched(cluster, logged, TRAIN_JOB).has_succeeded
    lines = ("New", "Suspended", "Running", "Running: 40 %", "Complete")
    assert logged == [f"TrainJob {TRAIN_JOB_NAME}: {line}" for line in lines]
    assert cluster.deleted == []
    trainer = cluster.objects[TRAIN_JOB_NAME]["spec"]["trainer"]
    assert trainer["command"] == list(COMMAND)
    assert {"name": "ESPALIER_TRAINER", "value": "trainjob"} in trainer["env"]

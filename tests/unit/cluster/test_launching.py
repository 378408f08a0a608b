import os
import signal
import threading
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
NAME = "r17-train-ray"


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
    cluster.script = [
        None,
        state("Initializing"),
        state("Running", "RUNNING"),
        state("Running", "RUNNING"),
        state("Complete", "SUCCEEDED"),
    ]
    logged = []
    status = launched(cluster, logged, MLFLOW_RUN_ID="0f1e", AWS_SECRET_ACCESS_KEY="hush")
    assert status.has_succeeded
    assert logged == [
        f"RayJob {NAME}: {line}"
        for line in ("New", "Initializing", "Running RUNNING", "Complete SUCCEEDED")
    ]
    assert cluster.deleted == []
    manifest = cluster.objects[NAME]
    assert manifest["spec"]["entrypoint"] == "espalier step train"
    assert manifest["spec"]["entrypointNumGpus"] == 1
    (owner,) = manifest["metadata"]["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"], owner["name"], owner["uid"]) == OWNER
    head = manifest["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    given = {entry["name"]: entry.get("value") for entry in head["env"]}
    assert (given["MLFLOW_RUN_ID"], given["ESPALIER_TRAINER"]) == ("0f1e", "rayjob")
    assert "hush" not in str(manifest)


@pytest.mark.parametrize(
    "ended",
    [
        state("Failed", "FAILED", "driver exited with 1"),
        state("Complete", "FAILED"),
        state("Complete", "STOPPED"),
        state("ValidationFailed", "", "no such field"),
    ],
)
def test_a_job_that_failed_is_told_from_one_that_succeeded(cluster, ended):
    cluster.script = [ended]
    status = launched(cluster)
    assert not status.has_succeeded
    assert status.message == ended["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_launcher_deletes_its_ray_job(cluster, number):
    cluster.script = [state("Running", "RUNNING")]
    before = signal.getsignal(number)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), number))
    timer.start()
    with pytest.raises(StepTerminated) as caught:
        launched(cluster)
    timer.join()
    assert caught.value.number == number
    ((name, options),) = cluster.deleted
    assert (name, options["propagationPolicy"]) == (NAME, "Background")
    assert options["preconditions"]["uid"].startswith("uid-")
    assert signal.getsignal(number) is before


def test_cleaning_up_survives_an_api_server_that_restarts(cluster):
    cluster.script = [state("Running", "RUNNING")]

    def send_away():
        cluster.faults += [503, "drop", 500]
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(0.3, send_away)
    timer.start()
    with pytest.raises(StepTerminated):
        launched(cluster)
    timer.join()
    assert [name for name, _ in cluster.deleted] == [NAME]


@pytest.mark.parametrize("fault", [500, 503, 429, "drop"])
def test_training_goes_on_while_the_api_server_is_away(cluster, fault):
    cluster.faults = [fault] * 4
    cluster.script = [state("Complete", "SUCCEEDED")]
    assert launched(cluster).has_succeeded
    assert cluster.deleted == []


def test_an_unreachable_api_server_is_given_up(cluster, monkeypatch):
    monkeypatch.setattr(launching, "RETRIES", replace(launching.RETRIES, total_s=0.1))
    cluster.faults = [503] * 99
    with pytest.raises(ClusterError, match=r"HTTP 503 .*; given up after [2-9] attempts"):
        launched(cluster)


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
    timer = threading.Timer(0.3, cluster.objects.clear)
    timer.start()
    with pytest.raises(ClusterError, match="was deleted"):
        launched(cluster)
    timer.join()


POD = ("v1", "Pod", "data-to-model-x-train-1", "pod-uid-1")
WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w1", "uid": "w-uid"}


def step_pod(cluster, pod=POD, *, owners=(WORKFLOW | {"controller": True},)):
    """A step of Kubeflow: its pod at the API server, and the variables that name it."""
    _, _, name, uid = pod
    path = f"/api/v1/namespaces/{NODES.pipeline_namespace}/pods/{name}"
    cluster.others[path] = {"metadata": {"name": name, "uid": uid, "ownerReferences": [*owners]}}
    return dict(zip(OWNER_VARIABLES, pod, strict=True))


def test_a_ray_job_of_kubeflow_belongs_to_the_workflow(cluster):
    cluster.script = [None, state("Complete", "SUCCEEDED")]
    assert launched(cluster, **step_pod(cluster)).has_succeeded
    (owner,) = cluster.objects[NAME]["metadata"]["ownerReferences"]
    assert {key: owner[key] for key in WORKFLOW} == WORKFLOW


def test_a_stopped_kubeflow_step_leaves_its_ray_job(cluster):
    cluster.script = [state("Running", "RUNNING")]
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    with pytest.raises(StepTerminated):
        launched(cluster, **step_pod(cluster))
    timer.join()
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


def test_a_step_in_another_namespace_names_the_key(cluster):
    variables = dict(zip(OWNER_VARIABLES, POD, strict=True))
    with pytest.raises(ClusterError, match=r"not in kubernetes\.pipeline_namespace="):
        launched(cluster, **variables)
    assert cluster.objects == {}


def test_a_pod_without_a_controller_owns_no_ray_job(cluster):
    with pytest.raises(ClusterError, match="has no controller"):
        launched(cluster, **step_pod(cluster, owners=()))


def test_ray_pods_know_run_and_tracking_server(cluster):
    cluster.script = [state("Complete", "SUCCEEDED")]
    for variables, run_id in (({}, None), (step_pod(cluster), "r17")):
        cluster.objects.clear()
        launched(cluster, MLFLOW_TRACKING_URI="http://mlflow:5000", **variables)
        head = cluster.objects[NAME]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
        given = {entry["name"]: entry.get("value") for entry in head["containers"][0]["env"]}
        assert given.get(RUN_ID_VARIABLE) == run_id  # the id of a Job is none of Kubeflow's
        assert given["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"


def test_a_refusal_has_the_servers_message(cluster):
    cluster.faults = [403]
    with pytest.raises(ClusterError, match=r"HTTP 403 .*asked for by the test") as caught:
        launched(cluster)
    assert "a-token-of-mine" not in str(caught.value)


@pytest.mark.parametrize("missing", [RUN_ID_VARIABLE, *OWNER_VARIABLES])
def test_a_step_outside_a_job_launches_nothing(cluster, missing):
    with pytest.raises(ClusterError, match=f"{missing} is not set"):
        launched(cluster, **{missing: ""})
    assert cluster.requests == []


def test_without_a_cluster_the_remedy_is_named(cluster, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="set KUBECONFIG"):
        launched(cluster, KUBECONFIG="")


def test_a_launcher_job_passes_run_and_owner():
    from tests.unit.cluster.objects.samples import LAPTOP_SIZED, job

    variables = {RUN_ID_VARIABLE, *OWNER_VARIABLES}
    for settings, told in ((NODES, variables), (LAPTOP_SIZED, set())):
        (container,) = job("train", settings)["spec"]["template"]["spec"]["containers"]
        assert {entry["name"] for entry in container["env"]} & variables == told


TRAIN_JOB_NAME = "tj-r17-train"


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
    assert logged == [
        f"TrainJob {TRAIN_JOB_NAME}: {line}"
        for line in ("New", "Suspended", "Running", "Running: 40 %", "Complete")
    ]
    assert cluster.deleted == []
    trainer = cluster.objects[TRAIN_JOB_NAME]["spec"]["trainer"]
    assert trainer["command"] == list(COMMAND)
    assert {"name": "ESPALIER_TRAINER", "value": "trainjob"} in trainer["env"]


def test_a_train_job_that_failed_says_why(cluster):
    cluster.script = [trained(Failed="True", message="jobset failed")]
    status = launched(cluster, kind=TRAIN_JOB)
    assert (status.has_ended, status.has_succeeded) == (True, False)
    assert status.line() == "Failed: jobset failed"


def test_a_terminated_launcher_deletes_its_train_job(cluster):
    cluster.script = [trained(active=1)]
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    with pytest.raises(StepTerminated):
        launched(cluster, kind=TRAIN_JOB)
    timer.join()
    assert [name for name, _ in cluster.deleted] == [TRAIN_JOB_NAME]


def test_a_train_job_of_kubeflow_belongs_to_the_workflow(cluster):
    cluster.script = [trained(Complete="True")]
    assert launched(cluster, kind=TRAIN_JOB, **step_pod(cluster)).has_succeeded
    (owner,) = cluster.objects[TRAIN_JOB_NAME]["metadata"]["ownerReferences"]
    assert {key: owner[key] for key in WORKFLOW} == WORKFLOW

"""The collector of RayJobs and TrainJobs that a stopped run or a lost Job left behind."""

import copy

import pytest

from espalier.cluster.launched_garbage import is_abandoned, main
from espalier.cluster.objects.names import Owner
from espalier.cluster.objects.ray_job import RAY_JOB
from espalier.cluster.objects.train_job import TRAIN_JOB
from tests.fakes.launched_stand_in import launched_stand_in, state, trained
from tests.unit.cluster.objects.samples import NODES, TRAINER, order

NAMESPACE = NODES.pipeline_namespace
RUNNING = {"metadata": {"uid": "o-uid"}, "spec": {}, "status": {"phase": "Running"}}
WORKFLOW = ("argoproj.io/v1alpha1", "Workflow")
JOB = ("batch/v1", "Job")
STATES = {RAY_JOB: state("Running", "RUNNING"), TRAIN_JOB: trained(active=1)}

every_kind = pytest.mark.parametrize("kind", [RAY_JOB, TRAIN_JOB], ids=lambda kind: kind.kind)


def launched(kind, owner=WORKFLOW, name="w1", run_id="r17", status=None):
    settings = NODES if kind is RAY_JOB else TRAINER
    owned = order(settings, run_id=run_id, owner=Owner(*owner, name, "o-uid"))
    made = kind.manifest(owned)
    made["metadata"]["uid"] = f"uid-{run_id}"
    return made | {"status": STATES[kind] if status is None else status}


def ended(kind):
    return RUNNING | {"status": {"conditions": [{"type": kind, "status": "True"}]}}


@every_kind
@pytest.mark.parametrize(
    ("workflow", "is_left"),
    [
        (RUNNING, False),
        (RUNNING | {"status": {}}, False),  # just created
        (None, True),
        (RUNNING | {"metadata": {"uid": "of-another-run"}}, True),
        (RUNNING | {"spec": {"shutdown": "Terminate"}}, True),
        (RUNNING | {"spec": {"shutdown": "Stop"}}, True),
        *((RUNNING | {"status": {"phase": p}}, True) for p in ("Succeeded", "Failed", "Error")),
    ],
)
def test_an_object_is_abandoned_when_its_workflow_ended(kind, workflow, is_left):
    assert is_abandoned(kind, launched(kind), workflow) is is_left
    # its operator has not looked at it yet
    assert is_abandoned(kind, launched(kind, status={}), workflow) is is_left


@every_kind
@pytest.mark.parametrize(
    ("job", "is_left"),
    [
        (RUNNING | {"status": {"active": 1}}, False),
        (ended("Suspended"), False),
        (ended("Failed"), True),
        (ended("Complete"), True),
        (None, True),
    ],
)
def test_an_object_is_abandoned_when_its_job_ended(kind, job, is_left):
    assert is_abandoned(kind, launched(kind, JOB), job) is is_left


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        *((RAY_JOB, state(one)) for one in ("Complete", "Failed", "ValidationFailed")),
        (TRAIN_JOB, trained(Complete="True")),
        (TRAIN_JOB, trained(Failed="True")),
    ],
)
def test_an_ended_object_is_left_to_its_operator(kind, status):
    failed = RUNNING | {"status": {"phase": "Failed"}}
    assert not is_abandoned(kind, launched(kind, status=status), failed)


@every_kind
def test_an_object_under_deletion_is_not_deleted_again(kind):
    found = copy.deepcopy(launched(kind))
    found["metadata"]["deletionTimestamp"] = "2026-03-04T12:00:00Z"
    assert not is_abandoned(kind, found, None)


@every_kind
def test_an_object_of_nobody_known_is_left_alone(kind):
    assert not is_abandoned(kind, launched(kind, ("apps/v1", "Deployment")), None)


@pytest.fixture
def cluster(tmp_path):
    with launched_stand_in(tmp_path) as stand_in:
        yield stand_in


def collected(cluster):
    main(["--namespace", NAMESPACE, "--kubeconfig", str(cluster.kubeconfig)])


def test_the_collector_ends_what_a_stopped_run_left(cluster, capsys):
    for name, phase in (("w1", "Failed"), ("w2", "Running")):
        path = f"/apis/argoproj.io/v1alpha1/namespaces/{NAMESPACE}/workflows/{name}"
        cluster.others[path] = RUNNING | {"status": {"phase": phase}}
    for name, job in (("j1", ended("Failed")), ("j2", RUNNING)):
        cluster.others[f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{name}"] = job
    objects = [
        launched(RAY_JOB, name="w1", run_id="stopped"),
        launched(RAY_JOB, name="w2", run_id="running"),
        launched(RAY_JOB, JOB, name="j1", run_id="of-a-failed-job"),
        launched(TRAIN_JOB, name="w3", run_id="deleted"),
        launched(TRAIN_JOB, JOB, name="j2", run_id="of-a-job"),
    ]
    cluster.objects = {one["metadata"]["name"]: one for one in objects}
    collected(cluster)
    expected = ["stopped-train-ray", "of-a-failed-job-train-ray", "tj-deleted-train"]
    assert [name for name, _ in cluster.deleted] == expected
    assert cluster.deleted[0][1]["preconditions"] == {"uid": "uid-stopped"}
    assert capsys.readouterr().out == (
        f"deleted RayJob {NAMESPACE}/stopped-train-ray\n"
        f"deleted RayJob {NAMESPACE}/of-a-failed-job-train-ray\n"
        f"deleted TrainJob {NAMESPACE}/tj-deleted-train\n"
    )


def test_without_operators_there_is_nothing_to_collect(cluster, capsys):
    cluster.faults = [404, 404]
    collected(cluster)
    assert capsys.readouterr().out == ""


def test_a_collector_without_rights_says_so(cluster):
    cluster.faults = [403]
    with pytest.raises(SystemExit, match=r"error: .*HTTP 403"):
        collected(cluster)

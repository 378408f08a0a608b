"""The collector of RayJobs and TrainJobs that a stopped run or a lost Job left behind."""

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
PHASES = ("Succeeded", "Failed", "Error")
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
    ("owner", "found", "is_left"),
    [
        (WORKFLOW, RUNNING, False),
        (WORKFLOW, RUNNING | {"status": {}}, False),  # just created
        (WORKFLOW, None, True),
        (WORKFLOW, RUNNING | {"metadata": {"uid": "of-another-run"}}, True),
        (WORKFLOW, RUNNING | {"spec": {"shutdown": "Terminate"}}, True),
        (WORKFLOW, RUNNING | {"spec": {"shutdown": "Stop"}}, True),
        *((WORKFLOW, RUNNING | {"status": {"phase": one}}, True) for one in PHASES),
        (JOB, RUNNING | {"status": {"active": 1}}, False),
        (JOB, ended("Suspended"), False),
        (JOB, ended("Failed"), True),
        (JOB, ended("Complete"), True),
        (JOB, None, True),
    ],
)
def test_an_object_is_abandoned_when_its_owner_ended(kind, owner, found, is_left):
    assert is_abandoned(kind, launched(kind, owner), found) is is_left
    # its operator has not looked at it yet
    assert is_abandoned(kind, launched(kind, owner, status={}), found) is is_left


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        *((RAY_JOB, state(one)) for one in ("Complete", "Failed", "ValidationFailed")),
        (TRAIN_JOB, trained(Complete="True")),
        (TRAIN_JOB, trained(Failed="True")),
    ],
)
def test_an_ended_object_or_one_under_deletion_is_left(kind, status):
    failed = RUNNING | {"status": {"phase": "Failed"}}
    assert not is_abandoned(kind, launched(kind, status=status), failed)
    deleted = launched(kind)
    deleted["metadata"]["deletionTimestamp"] = "2026-03-04T12:00:00Z"
    assert not is_abandoned(kind, deleted, None)
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
    assert [line.split("/")[1] for line in capsys.readouterr().out.splitlines()] == expected


def test_a_collector_without_operators_rests_and_without_rights_complains(cluster, capsys):
    cluster.faults = [404, 404]
    collected(cluster)
    assert capsys.readouterr().out == ""
    cluster.faults = [403]
    with pytest.raises(SystemExit, match="403"):
        collected(cluster)

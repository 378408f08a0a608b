"""The collector of RayJobs that a stopped run of Kubeflow left behind."""

import copy

import pytest

from espalier.cluster.objects.job import training_ray_job
from espalier.cluster.objects.names import Owner
from espalier.cluster.ray_garbage import is_abandoned, main
from tests.fakes.rayjob_stand_in import rayjob_stand_in, state
from tests.unit.cluster.objects.samples import NODES

NAMESPACE = NODES.pipeline_namespace
RUNNING = {"metadata": {"uid": "w-uid"}, "spec": {}, "status": {"phase": "Running"}}
WORKFLOW = ("argoproj.io/v1alpha1", "Workflow")


def ray_job(kind=WORKFLOW, name="w1", run_id="r17", **status):
    owner = Owner(*kind, name, "w-uid")
    job = training_ray_job(("x",), run_id=run_id, owner=owner, settings=NODES, environment={})
    job["metadata"]["uid"] = f"uid-{run_id}"
    return job | {"status": status}


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
def test_a_job_is_abandoned_when_its_workflow_ended(workflow, is_left):
    assert is_abandoned(ray_job(**state("Running", "RUNNING")), workflow) is is_left
    assert is_abandoned(ray_job(), workflow) is is_left  # KubeRay has not looked at it yet


@pytest.mark.parametrize("ended", ["Complete", "Failed", "ValidationFailed"])
def test_an_ended_job_is_left_to_kuberay(ended):
    failed = RUNNING | {"status": {"phase": "Failed"}}
    assert not is_abandoned(ray_job(**state(ended)), failed)


def test_a_job_under_deletion_is_not_deleted_again():
    job = copy.deepcopy(ray_job())
    job["metadata"]["deletionTimestamp"] = "2026-03-04T12:00:00Z"
    assert not is_abandoned(job, None)


@pytest.fixture
def cluster(tmp_path):
    with rayjob_stand_in(tmp_path) as stand_in:
        yield stand_in


def collected(cluster):
    main(["--namespace", NAMESPACE, "--kubeconfig", str(cluster.kubeconfig)])


def test_the_collector_ends_what_a_stopped_run_left(cluster, capsys):
    for name, phase in (("w1", "Failed"), ("w2", "Running")):
        path = f"/apis/argoproj.io/v1alpha1/namespaces/{NAMESPACE}/workflows/{name}"
        cluster.others[path] = RUNNING | {"status": {"phase": phase}}
    jobs = [
        ray_job(name="w1", run_id="stopped"),
        ray_job(name="w2", run_id="running"),
        ray_job(name="w3", run_id="deleted"),
        ray_job(kind=("batch/v1", "Job"), name="w1", run_id="of-a-job"),
    ]
    cluster.jobs = {job["metadata"]["name"]: job for job in jobs}
    collected(cluster)
    assert [name for name, _ in cluster.deleted] == ["stopped-train-ray", "deleted-train-ray"]
    assert cluster.deleted[0][1]["preconditions"] == {"uid": "uid-stopped"}
    assert capsys.readouterr().out == (
        f"deleted RayJob {NAMESPACE}/stopped-train-ray\n"
        f"deleted RayJob {NAMESPACE}/deleted-train-ray\n"
    )


def test_without_kuberay_there_is_nothing_to_collect(cluster, capsys):
    cluster.faults = [404]
    collected(cluster)
    assert capsys.readouterr().out == ""


def test_a_collector_without_rights_says_so(cluster):
    cluster.faults = [403]
    with pytest.raises(SystemExit, match=r"error: .*HTTP 403"):
        collected(cluster)

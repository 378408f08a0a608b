"""Kueue: what is queued waits for its quota, is preempted, and goes on where it was."""

import copy

import pytest

from tests.cluster.images import PIPELINE as IMAGE
from tests.cluster.neighbours import runs
from tests.cluster.neighbours.conftest import URGENT
from tests.cluster.parts import kubectl
from tests.unit.cluster.objects.samples import every_manifest
from tests.unit.k8s.allowed_verbs import PIPELINE

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
QUEUED = ('kubernetes.queue="espalier"', 'kubernetes.resources.cpu_request="1"')
STEPS = 16
_STARTED_S = 240
_ENDED_S = 900


def somebodys_job(name, *, seconds, cpu="1", priority=None):
    """A Job of somebody else in the same queue."""
    labels = {QUEUE_LABEL: "espalier"}
    if priority:
        labels["kueue.x-k8s.io/priority-class"] = priority
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": PIPELINE, "labels": labels},
        "spec": {"backoffLimit": 0, "template": {"spec": _pod_spec(seconds, cpu)}},
    }


def _pod(name, *, seconds, cpu="1"):
    """A step's pod as Kubeflow makes it: a plain pod that names the queue."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": PIPELINE, "labels": {QUEUE_LABEL: "espalier"}},
        "spec": _pod_spec(seconds, cpu),
    }


def _pod_spec(seconds, cpu):
    wanted = {"cpu": cpu, "memory": "32Mi"}
    return {
        "restartPolicy": "Never",
        "serviceAccountName": "espalier-step",
        "containers": [
            {
                "name": "main",
                "image": IMAGE,
                "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", str(seconds)],
                "resources": {"requests": wanted, "limits": wanted},
            }
        ],
    }


def _drop(places, kind, name):
    kubectl(
        places, f"--namespace={PIPELINE}", "delete", kind, name, "--ignore-not-found",
        "--grace-period=0", "--wait=true",
    )  # fmt: skip


def _is_suspended(places, job):
    return bool(runs.found(places, "job", job)["spec"].get("suspend"))


def ends(places, job):
    return runs.condition(runs.found(places, "job", job), "Complete").get("status") == "True"


def workload_of(places, owner):
    """Kueue's Workload of an object."""
    for one in runs.listed(places, "workloads.kueue.x-k8s.io"):
        if any(ref["name"] == owner for ref in one["metadata"].get("ownerReferences", ())):
            return one
    return None


def _said(places, owner):
    """Why a workload has no quota, as Kueue says it."""
    workload = workload_of(places, owner)
    return runs.condition(workload, "QuotaReserved").get("message", "") if workload else ""


@pytest.fixture(scope="module")
def preempted(queues, inputs):
    """A queued training that gave way to somebody more urgent, and what was seen."""
    seen = runs.Moments()
    training = runs.Stage(queues, inputs, overrides=(*QUEUED, f"training.steps={STEPS}")).start()
    try:
        runs.until(training.log, lambda: training.checkpoint, within_s=_STARTED_S + 200)
        seen("training has its first checkpoint")
        pods = {one["metadata"]["name"] for one in training.pods()}
        runs.create(queues, somebodys_job(URGENT, seconds=5, priority=URGENT))
        runs.until("training is suspended", lambda: training.state["spec"]["suspend"], within_s=60)
        seen("training is suspended")
        evicted = workload_of(queues, training.job)
        runs.until("the urgent Job ends", lambda: ends(queues, URGENT), within_s=_STARTED_S)
        seen("the urgent Job ended")
        runs.until(
            "training is admitted again",
            lambda: not training.state["spec"].get("suspend"), within_s=60,
        )  # fmt: skip
        seen("training is admitted again")
        runs.until(training.log, lambda: training.is_complete, within_s=_ENDED_S)
        seen("training ended")
        log = training.log(lines=400)
        yield {
            "training": training,
            "evicted": evicted,
            "log": log,
            "pods": pods,
            "later": {one["metadata"]["name"] for one in training.pods()} - pods,
        }
    finally:
        training.delete()
        _drop(queues, "job", URGENT)


def test_a_preempted_training_loses_no_step(preempted):
    assert preempted["training"].steps() == list(range(1, STEPS + 1))


def test_a_preempted_training_goes_on_in_another_pod(preempted):
    assert preempted["later"]
    assert "resumes from the checkpoint" in preempted["log"]


def test_kueue_says_who_was_preempted(preempted):
    evicted = runs.condition(preempted["evicted"], "Evicted")
    assert (evicted["status"], evicted["reason"]) == ("True", "Preempted"), evicted


def test_a_second_stage_waits_for_the_first_ones_quota(queues, inputs):
    first, second = (
        runs.Stage(queues, inputs, "ingest", overrides=QUEUED).start() for _ in range(2)
    )
    try:
        runs.until("one is admitted", lambda: not _is_suspended(queues, first.job), within_s=60)
        assert _is_suspended(queues, second.job)
        said = runs.until("why", lambda: _said(queues, second.job), within_s=60)
        assert "insufficient unused quota for cpu in flavor espalier-cpu" in said, said
        runs.until(first.log, lambda: first.is_complete, within_s=_STARTED_S)
        runs.until(second.log, lambda: second.is_complete, within_s=_STARTED_S)
    finally:
        first.delete()
        second.delete()


def test_what_needs_no_gpu_waits_beside_free_gpu_nodes(queues):
    """GPU nodes have quota left; their taint keeps it for what tolerates it."""
    runs.create(queues, somebodys_job("large", seconds=1, cpu="4"))
    try:
        said = runs.until("why", lambda: _said(queues, "large"), within_s=60)
        assert "untolerated taint {nvidia.com/gpu present NoSchedule" in said, said
        assert "insufficient quota for cpu in flavor espalier-cpu" in said, said
        assert _is_suspended(queues, "large")
    finally:
        _drop(queues, "job", "large")


def test_step_pods_wait_behind_a_gate(queues):
    runs.create(queues, somebodys_job("before", seconds=15))
    runs.create(queues, _pod("step", seconds=1))
    try:
        pod = runs.found(queues, "pod", "step")
        assert {"name": "kueue.x-k8s.io/admission"} in pod["spec"]["schedulingGates"]
        runs.until("the Job before it ends", lambda: ends(queues, "before"), within_s=120)
        runs.until(
            "the step's pod ends",
            lambda: runs.found(queues, "pod", "step")["status"]["phase"] == "Succeeded",
            within_s=120,
        )
    finally:
        _drop(queues, "pod", "step")
        _drop(queues, "job", "before")


def test_a_preempted_step_pod_is_deleted(queues):
    """Kubeflow's step is then tried again, as after an eviction (k8s/kubeflow/controller)."""
    runs.create(queues, _pod("step", seconds=120))
    try:
        runs.until(
            "it runs",
            lambda: runs.found(queues, "pod", "step")["status"]["phase"] == "Running",
            within_s=120,
        )
        runs.create(queues, somebodys_job("hasty", seconds=1, priority=URGENT))
        runs.until("it is deleted", lambda: runs.found(queues, "pod", "step") is None, within_s=120)
        runs.until("the urgent Job ends", lambda: ends(queues, "hasty"), within_s=120)
    finally:
        _drop(queues, "pod", "step")
        _drop(queues, "job", "hasty")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda spec: spec.update(shutdownAfterJobFinishes=False),
            "a kueue managed job should delete the cluster after finishing",
        ),
        (
            lambda spec: spec["rayClusterSpec"].update(enableInTreeAutoscaling=True),
            "a kueue managed",
        ),
    ],
)
def test_kueue_refuses_ray_jobs_that_keep_their_quota(need, queues, change, complaint):
    need("kuberay")
    job = copy.deepcopy(every_manifest()["ray-job"])
    job["spec"]["submitterPodTemplate"]["spec"]["restartPolicy"] = "Never"
    change(job["spec"])
    assert complaint in runs.refusal(queues, job)


def test_a_running_job_cannot_change_its_queue(queues):
    runs.create(queues, somebodys_job("running", seconds=30))
    try:
        runs.until("it is admitted", lambda: not _is_suspended(queues, "running"), within_s=60)
        done = kubectl(
            queues, f"--namespace={PIPELINE}", "label", "--overwrite", "job/running",
            f"{QUEUE_LABEL}=other",
        )  # fmt: skip
        assert done.returncode != 0
        assert "field is immutable" in done.stderr, done.stderr
    finally:
        _drop(queues, "job", "running")

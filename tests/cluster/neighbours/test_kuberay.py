"""KubeRay: `train` as a RayJob on two nodes without GPUs, also when one of them is lost."""

import pytest

from tests.cluster.neighbours import runs
from tests.cluster.neighbours.conftest import CLAIM
from tests.cluster.parts import kubectl
from tests.unit.k8s.allowed_verbs import PIPELINE

ON_RAY = (
    'kubernetes.trainer="rayjob"',
    "kubernetes.nodes=2",
    f'kubernetes.workspace_claim="{CLAIM}"',
    'kubernetes.ray.head={cpu_request="100m", memory_request="512Mi"}',
    'kubernetes.resources.cpu_request="200m"',
    'kubernetes.resources.memory_request="512Mi"',
    "training.processes=2",
    "threads=1",
)
"""Requests that leave room for all five pods on a node of two cores."""
_READY_S = 420
_ENDED_S = 900


@pytest.fixture(scope="module")
def claim(need, shared_claim):
    return need("kuberay")


def _ray_job(training):
    (job,) = runs.listed(
        training.places, "rayjobs.ray.io", f"espalier.dev/run={training.run_id}"
    ) or [{"status": {}, "spec": {}}]
    return job


def _suspended(training):
    return _ray_job(training)["spec"].get("suspend", False)  # a false one is left out of an answer


def _nodes(training, kind):
    return runs.listed(
        training.places, "pods", f"espalier.dev/run={training.run_id},ray.io/node-type={kind}"
    )


def _lose(training, kind):
    lost = _nodes(training, kind)[0]["metadata"]["name"]
    kubectl(
        training.places, f"--namespace={PIPELINE}", "delete", "pod", lost, "--grace-period=0",
        "--force",
    )  # fmt: skip


def _seen_states(training, seen):
    """Waits for the end; notes each state of the RayJob on the way."""
    last = [""]

    def is_over():
        status = _ray_job(training).get("status", {})
        state = f"{status.get('jobDeploymentStatus', '')} {status.get('jobStatus', '')}".strip()
        if state and state != last[0]:
            last[0] = state
            seen(f"RayJob {state}")
        return training.is_complete

    runs.until(lambda: f"{last[0]}\n{training.log()}", is_over, within_s=_ENDED_S)
    seen("the launching Job is complete")


def test_training_on_two_ray_nodes_runs_to_its_end(claim, inputs):
    seen, steps = runs.Moments(), 4
    training = runs.Stage(claim, inputs, overrides=(*ON_RAY, f"training.steps={steps}")).start()
    try:
        runs.until(training.log, lambda: len(_nodes(training, "worker")) == 2, within_s=_READY_S)
        seen("two workers exist")
        _seen_states(training, seen)
        assert training.steps() == list(range(1, steps + 1))
    finally:
        training.delete()


@pytest.mark.parametrize("kind", ["worker", "head"])
def test_training_outlives_a_lost_ray_node(claim, inputs, kind):
    seen, steps = runs.Moments(), 32  # twelve end before a pod that is deleted has ended
    training = runs.Stage(claim, inputs, overrides=(*ON_RAY, f"training.steps={steps}")).start()
    try:
        runs.until(training.log, lambda: training.checkpoint, within_s=_READY_S)
        seen("training has its first checkpoint")
        _lose(training, kind)
        seen(f"a {kind} is deleted")
        _seen_states(training, seen)
        assert training.steps() == list(range(1, steps + 1))
        if kind == "worker":  # a new head is asked once more, within the same try
            assert _ray_job(training)["status"]["failed"] >= 1, "the RayJob tried again"
    finally:
        training.delete()


def test_a_queued_ray_job_waits_for_its_quota(claim, queues, inputs):
    """Head, workers and submitter are counted together, and start together."""
    seen = runs.Moments()
    _set_quota(queues, "400m")
    training = runs.Stage(
        queues,
        inputs,
        overrides=(*ON_RAY, 'kubernetes.queue="espalier"', "training.steps=2"),
    ).start()
    try:
        runs.until(training.log, lambda: _suspended(training), within_s=120)
        seen("the RayJob is suspended")
        runs.until(
            "it says so",
            lambda: _ray_job(training)["status"].get("jobDeploymentStatus") == "Suspended",
            within_s=60,
        )
        assert _nodes(training, "worker") == []
        _set_quota(queues, "2")
        runs.until("it is admitted", lambda: not _suspended(training), within_s=60)
        seen("it is admitted")
        _seen_states(training, seen)
        assert training.steps() == [1, 2]
    finally:
        training.delete()
        _set_quota(queues, "1")


def _set_quota(places, cpu):
    path = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"
    done = kubectl(
        places, "patch", "clusterqueue", "espalier", "--type=json",
        f'--patch=[{{"op": "replace", "path": "{path}", "value": "{cpu}"}}]',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

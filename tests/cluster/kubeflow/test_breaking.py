"""Runs that are broken: pods lost, steps refused, runs stopped, tried again."""

import json

import pytest

from tests.cluster.kubeflow.runs import espalier, log_of, objects_of, pod_of, submitted, tasks
from tests.cluster.parts import kubectl
from tests.cluster.places import places
from tests.unit.k8s.allowed_verbs import PIPELINE, SANDBOXES


@pytest.mark.slow
def test_a_step_whose_pod_is_deleted_is_tried_again(kubeflow):
    run_id = submitted("synthesis.train_tasks=2100", name="lost-pod")
    pod = pod_of(run_id, "synthesize")
    gone = kubectl(places(), f"--namespace={PIPELINE}", "delete", "pod", pod, "--grace-period=5")
    assert gone.returncode == 0, gone.stderr
    again = pod_of(run_id, "synthesize", within_s=120)
    assert again != pod
    kubeflow.post(f"runs/{run_id}:terminate")


@pytest.mark.slow
def test_a_refused_step_is_not_tried_again(kubeflow):
    run_id = submitted('knowledge.path="/nowhere"', name="refused")
    run = kubeflow.wait(run_id, within_s=600)
    assert run["state"] == "FAILED"
    pods = [
        pod
        for pod in objects_of(run_id)
        if pod["metadata"]["labels"].get("espalier.dev/stage") == "ingest"
    ]
    assert len(pods) == 1
    (main,) = [one for one in pods[0]["status"]["containerStatuses"] if one["name"] == "main"]
    assert "/nowhere" in main["state"]["terminated"]["message"]


@pytest.mark.slow
def test_a_failed_expectation_is_named_and_its_report_is_kept(kubeflow):
    run_id = submitted("validation.min_pass_share=1.1", name="refused-data")
    run = kubeflow.wait(run_id, within_s=900)
    assert run["state"] == "FAILED"
    said = espalier("runs", "show", run_id)
    assert "expect" in said.stdout, said.stdout + said.stderr


@pytest.mark.slow
def test_a_stopped_run_leaves_nothing(kubeflow):
    run_id = submitted(name="stopped")
    pod = pod_of(run_id, "synthesize")
    assert espalier("runs", "stop", run_id).returncode == 0
    run = kubeflow.wait(run_id, within_s=120)
    assert run["state"] in ("CANCELED", "FAILED"), run["state"]
    left = [one for one in objects_of(run_id) if one["status"]["phase"] == "Running"]
    assert left == [], log_of(pod)
    sandboxes = kubectl(places(), f"--namespace={SANDBOXES}", "get", "pods", "--output=json")
    assert json.loads(sandboxes.stdout)["items"] == []


@pytest.mark.slow
def test_a_run_that_is_tried_again_keeps_what_it_has(kubeflow):
    run_id = submitted("knowledge.max_cities=2900", name="again")
    pod = pod_of(run_id, "prepare_policy")
    assert espalier("runs", "stop", run_id).returncode == 0
    kubeflow.wait(run_id, within_s=120)
    assert espalier("runs", "retry", run_id).returncode == 0
    again = pod_of(run_id, "prepare_policy")
    assert again != pod
    states = tasks(kubeflow.run(run_id))
    assert states["synthesize"] == "SUCCEEDED"
    kubeflow.post(f"runs/{run_id}:terminate")

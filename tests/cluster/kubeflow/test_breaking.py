"""Runs that are broken: pods lost, data refused, runs stopped, tried again."""

import json
import time

import pytest

from tests.cluster.kubeflow.runs import log_of, objects_of, of_runs, pod_of, submitted, tasks
from tests.cluster.parts import kubectl
from tests.cluster.places import places
from tests.unit.k8s.allowed_verbs import PIPELINE, SANDBOXES

_GONE_WITHIN_S = 30


@pytest.mark.slow
def test_a_drained_step_is_tried_again_and_goes_on(kubeflow):
    """A drained node ends a pod by SIGTERM: exit code 143, which is not retried as shipped."""
    run_id = submitted("seed=11", "policy.prestage.steps=4000", name="drained")
    pod = pod_of(run_id, "prepare_policy")
    _wait_for_line(pod, "checkpoints are copied to")
    gone = kubectl(places(), f"--namespace={PIPELINE}", "delete", "pod", pod, "--grace-period=5")
    assert gone.returncode == 0, gone.stderr
    again = pod_of(run_id, "prepare_policy", within_s=180, besides=[pod])
    _wait_for_line(again, "goes on from the checkpoint")
    of_runs("stop", run_id)


@pytest.mark.slow
def test_refused_data_are_named_and_not_tried_again(kubeflow):
    run_id = submitted("validation.max_question_words=1", name="refused")
    assert kubeflow.wait(run_id, within_s=900)["state"] == "FAILED"
    shown = json.loads(of_runs("show", run_id, "--json"))
    said = json.dumps(shown)
    assert "question_length (column question_words" in said
    assert "/validate/" in said, "where the report is"
    pods = [
        pod["metadata"]["name"]
        for pod in objects_of(run_id)
        if pod["metadata"]["labels"].get("espalier.dev/stage") == "require_valid"
    ]
    assert len(pods) == 1
    assert tasks(kubeflow.run(run_id))["validate"] == "SUCCEEDED"


@pytest.mark.slow
def test_a_stopped_run_leaves_nothing_running(kubeflow):
    run_id = submitted("seed=12", name="stopped")
    pod = pod_of(run_id, "synthesize")
    of_runs("stop", run_id)
    end = time.monotonic() + _GONE_WITHIN_S
    while left := [one for one in objects_of(run_id) if one["status"]["phase"] == "Running"]:
        assert time.monotonic() < end, (left[0]["metadata"]["name"], log_of(pod))
        time.sleep(1)
    found = kubectl(places(), f"--namespace={SANDBOXES}", "get", "pods", "--output=json")
    assert json.loads(found.stdout)["items"] == []


@pytest.mark.slow
def test_a_run_that_is_tried_again_keeps_what_it_has(kubeflow):
    run_id = submitted("seed=13", name="again")
    pod_of(run_id, "prepare_policy")
    of_runs("stop", run_id)
    kubeflow.wait(run_id, within_s=120)
    of_runs("retry", run_id)
    assert kubeflow.wait(run_id, within_s=1200)["state"] == "SUCCEEDED"
    pods = [pod["metadata"]["labels"].get("espalier.dev/stage") for pod in objects_of(run_id)]
    assert pods.count("synthesize") == 1


def _wait_for_line(pod, text, *, within_s=240):
    end = time.monotonic() + within_s
    while text not in (log := log_of(pod)):
        assert time.monotonic() < end, f"{pod} never said {text!r}: {log[-2000:]}"
        time.sleep(1)

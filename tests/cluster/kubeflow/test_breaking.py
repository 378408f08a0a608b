"""Runs that are broken: pods lost, data refused, runs stopped, tried again."""

import json
import time

import pytest

from espalier.chain import CHAIN
from tests.cluster.chain import SANDBOXES_IN_PODS
from tests.cluster.kubeflow.runs import (
    LEASE_S,
    log_of,
    no_sandbox_is_left,
    objects_of,
    of_runs,
    pod_of,
    running,
    sandboxes,
    submitted,
    tasks,
    wait_until,
)
from tests.cluster.parts import kubectl
from tests.cluster.places import places
from tests.unit.k8s.allowed_verbs import PIPELINE


@pytest.mark.slow
def test_a_drained_step_is_tried_again_and_goes_on(kubeflow):
    """A drained node ends a pod by SIGTERM: exit code 143, which is not retried as shipped."""
    run_id = submitted("seed=11", "policy.prestage.steps=4000", name="drained")
    pod = pod_of(run_id, "prepare_policy")
    _wait_for_line(pod, "checkpoints are copied to")
    gone = kubectl(places(), f"--namespace={PIPELINE}", "delete", "pod", pod, "--grace-period=5")
    assert gone.returncode == 0, gone.stderr
    again = pod_of(run_id, "prepare_policy", besides=[pod])
    _wait_for_line(again, "resumes from the checkpoint")
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
def test_a_run_stopped_in_every_stage_leaves_nothing(kubeflow, started):
    """One run, tried again after every stop: what it has is kept, and it ends well.

    At the same time as the run of every stage, which has stages of the same names.
    """
    changes = (*SANDBOXES_IN_PODS, "seed=12")
    run_id = submitted(*changes, profile="arithmetic-smoke", small=(), name="stopped")
    ended = {}
    for stage in CHAIN:
        pod = pod_of(run_id, stage.name)
        if stage.plays_episodes:
            wait_until(lambda: sandboxes("pods"), f"no sandbox of {stage.name}")
        _wait_for_line(pod, f"Looking for component `{stage.name}`")
        kubeflow.post(f"runs/{run_id}:terminate")
        wait_until(lambda: not running(run_id), f"pods run after {stage.name} was stopped", 60)
        assert kubeflow.wait(run_id, within_s=120)["state"] == "FAILED"
        assert ended.items() <= _ended(run_id).items(), "a stage that had ended was begun again"
        ended = _ended(run_id)
        kubeflow.post(f"runs/{run_id}:retry")
    assert kubeflow.wait(run_id, within_s=900)["state"] == "SUCCEEDED"
    assert ended.items() <= _ended(run_id).items()
    assert {stage.name for stage in CHAIN} <= _ended(run_id).keys()
    wait_until(no_sandbox_is_left, "sandboxes of stopped stages are left", LEASE_S + 120)


def _ended(run_id):
    """Stage -> id of the pod in which it succeeded."""
    return {
        pod["metadata"]["labels"].get("espalier.dev/stage"): pod["metadata"]["uid"]
        for pod in objects_of(run_id)
        if pod["status"]["phase"] == "Succeeded"
        and "espalier.dev/stage" in pod["metadata"]["labels"]
    }


def _wait_for_line(pod, text, *, within_s=240):
    end = time.monotonic() + within_s
    while text not in (log := log_of(pod)):
        assert time.monotonic() < end, f"{pod} never said {text!r}: {log[-2000:]}"
        time.sleep(1)

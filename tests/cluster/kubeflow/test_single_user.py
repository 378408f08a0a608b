"""Kubeflow with one user: runs are in its own namespace, where steps have accounts of ours."""

import pytest

from tests.cluster.chain import SANDBOXES_IN_PODS
from tests.cluster.kubeflow.runs import (
    ACCOUNT,
    IS_MULTI_USER,
    LEASE_S,
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

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(IS_MULTI_USER, reason="this Kubeflow has several users"),
]


@pytest.fixture(scope="module")
def stopped(kubeflow):
    """Id of a run that was stopped while it had sandboxes."""
    run_id = submitted(*SANDBOXES_IN_PODS, profile="arithmetic-smoke", small=(), name="one-user")
    pod_of(run_id, "synthesize", within_s=900)
    wait_until(lambda: sandboxes("pods"), "no sandbox of synthesize")
    of_runs("stop", run_id)
    return run_id


def test_steps_have_the_account_of_the_overlay(stopped):
    accounts = {pod["spec"]["serviceAccountName"] for pod in objects_of(stopped)}
    assert accounts == {ACCOUNT}


def test_a_stop_leaves_no_pods_and_no_sandboxes(kubeflow, stopped):
    wait_until(lambda: not running(stopped), "pods run after the stop", 60)
    wait_until(no_sandbox_is_left, "sandboxes are left", LEASE_S + 120)
    assert kubeflow.wait(stopped, within_s=120)["state"] == "FAILED"


def test_a_small_run_comes_to_its_end(kubeflow, stopped):
    of_runs("retry", stopped)
    run = kubeflow.wait(stopped, within_s=1800)
    assert run["state"] == "SUCCEEDED", tasks(run)

"""What a pod or a claim says of its sandbox."""

import pytest

from espalier.sandbox.api_server import ClusterState, state_of_claim, state_of_pod


def _pod(status, **metadata):
    return {"metadata": {"name": "s", **metadata}, "status": status}


def _container(**state):
    return {"containerStatuses": [{"state": state}]}


def test_a_running_pod_has_an_address():
    state = state_of_pod(_pod({"phase": "Running", "podIP": "10.0.0.7"}))
    assert state == ClusterState(address="10.0.0.7")


@pytest.mark.parametrize(
    ("status", "waits_for"),
    [
        ({}, "Pending"),
        ({"phase": "Running"}, "Running"),
        (
            _container(waiting={"reason": "ImagePullBackOff", "message": "no such image"}),
            "ImagePullBackOff: no such image",
        ),
    ],
)
def test_a_pending_pod_says_what_it_waits_for(status, waits_for):
    assert state_of_pod(_pod(status)) == ClusterState(waits_for=waits_for)


def test_a_pod_that_fits_on_no_node_says_so():
    scheduled = {"type": "PodScheduled", "reason": "Unschedulable", "message": "0/3 nodes"}
    state = state_of_pod(_pod({"phase": "Pending", "conditions": [scheduled]}))
    assert (state.waits_for, state.is_unschedulable) == ("0/3 nodes", True)


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, "DeadlineExceeded"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "Evicted: disk"),
        (
            {"phase": "Failed"} | _container(terminated={"reason": "OOMKilled", "exitCode": 137}),
            "OOMKilled (exit status 137)",
        ),
        (
            {"phase": "Failed", "conditions": [
                {"type": "DisruptionTarget", "reason": "PreemptionByScheduler"}
            ]},
            "PreemptionByScheduler",
        ),
        ({"phase": "Succeeded"}, "Succeeded"),
    ],
)  # fmt: skip
def test_a_pod_that_ended_says_why(status, ended):
    assert state_of_pod(_pod(status)) == ClusterState(ended=ended)


def test_a_pod_being_deleted_has_ended_but_still_exists():
    pod = _pod({"phase": "Running", "podIP": "10.0.0.7"}, deletionTimestamp="2026-03-04T12:00:00Z")
    assert state_of_pod(pod) == ClusterState(ended="it was deleted")


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, ClusterState(waits_for="its claim")),
        (
            {"conditions": [{"type": "Ready", "status": "False", "reason": "SandboxMissing"}]},
            ClusterState(waits_for="SandboxMissing"),
        ),
        (
            {
                "conditions": [{"type": "Ready", "status": "True"}],
                "sandbox": {"name": "w", "podIPs": ["10.0.0.8", "fd00::8"]},
            },
            ClusterState(address="10.0.0.8"),
        ),
        (
            {"conditions": [{"type": "Finished", "status": "True", "reason": "PodFailed"}]},
            ClusterState(ended="PodFailed"),
        ),
    ],
)
def test_a_claim_has_the_same_states_as_a_pod(status, state):
    assert state_of_claim(_pod(status)) == state

"""What a pod or a claim says of its sandbox."""

import pytest

from espalier.sandbox.api_server import ClusterState, state_of_claim, state_of_pod


def _pod(status, **metadata):
    return {"metadata": {"name": "s", **metadata}, "status": status}


def _container(**state):
    return {"containerStatuses": [{"state": state}]}


def test_a_running_pod_has_an_address_and_its_nodes_image():
    status = {"phase": "Running", "podIP": "10.0.0.7"}
    assert state_of_pod(_pod(status)) == ClusterState(address="10.0.0.7")
    status["containerStatuses"] = [{"imageID": "registry.example/one@sha256:77"}]
    assert state_of_pod(_pod(status)).image_id == "registry.example/one@sha256:77"


@pytest.mark.parametrize(
    ("status", "waits_for"),
    [
        ({}, "Pending"),
        ({"phase": "Running"}, "Running"),
        (_container(waiting={"reason": "Pull", "message": "no image"}), "Pull: no image"),
    ],
)
def test_a_pending_pod_says_what_it_waits_for(status, waits_for):
    assert state_of_pod(_pod(status)) == ClusterState(waits_for=waits_for)


def _disrupted(reason):
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}


def _terminated(reason, exit_code):
    return {"phase": "Failed"} | _container(terminated={"reason": reason, "exitCode": exit_code})


KILLED = _terminated("OOMKilled", 137)
OVER_DISK = {
    "phase": "Failed",
    "reason": "Evicted",
    "message": "Pod ephemeral local storage usage exceeds the total limit of containers 256Mi. ",
}


DELETED = {"deletionTimestamp": "2026-03-04T12:00:00Z"}


@pytest.mark.parametrize(
    ("status", "metadata", "ended"),
    [
        (KILLED, {}, "OOMKilled (exit status 137)"),
        (KILLED, DELETED, "OOMKilled (exit status 137)"),
        (OVER_DISK, {}, "Evicted: Pod ephemeral local storage usage exceeds"),
        (_terminated("Error", 1), {}, "Error (exit status 1)"),
        (_terminated("Error", 139), {}, "Error (exit status 139)"),
    ],
)
def test_what_ran_in_a_pod_may_have_ended_it(status, metadata, ended):
    state = state_of_pod(_pod(status, **metadata))
    assert state.ended.startswith(ended)
    assert state.by_program


@pytest.mark.parametrize(
    ("status", "metadata", "ended"),
    [
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, {}, "DeadlineExceeded"),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}
            | _disrupted("TerminationByKubelet"),
            {},
            "Evicted: The node was low on memory.",
        ),
        (_terminated("Error", 143) | _disrupted("EvictionByEvictionAPI"), {}, "EvictionByEviction"),
        (_terminated("Error", 137) | {"reason": "NodeLost"}, {}, "NodeLost"),
        (_terminated("Error", 143), DELETED, "Error (exit status 143)"),
        (_terminated("ContainerStatusUnknown", 137), {}, "ContainerStatusUnknown"),
        (_terminated("Unknown", 255), {}, "Unknown (exit status 255)"),
        ({"phase": "Succeeded"}, {}, "Succeeded"),
        ({"phase": "Running", "podIP": "10.0.0.7"}, DELETED, "it was deleted"),
        (_terminated("Completed", 0) | {"phase": "Succeeded"}, {}, "Completed (exit status 0)"),
        (_terminated("Error", 143), {}, "Error (exit status 143)"),
        ({"phase": "Running", "podIP": "10.0.0.7"} | _disrupted("DeletionByTaintManager"), DELETED,
         "DeletionByTaintManager"),
    ],
)  # fmt: skip
def test_what_the_cluster_did_is_no_programs_fault(status, metadata, ended):
    state = state_of_pod(_pod(status, **metadata))
    assert state.ended.startswith(ended)
    assert not state.by_program


def _condition(kind, status, **reason):
    return {"conditions": [{"type": kind, "status": status, **reason}]}


POD = {"sandbox": {"name": "w", "podIPs": ["10.0.0.8", "fd00::8"]}}


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, ClusterState(waits_for="its claim")),
        (_condition("Ready", "False", reason="Missing"), ClusterState(waits_for="Missing")),
        (_condition("Ready", "True") | POD, ClusterState(address="10.0.0.8")),
        (_condition("Ready", "False") | POD, ClusterState(address="10.0.0.8")),
        (_condition("Finished", "True", reason="PodFailed"), ClusterState(ended="PodFailed")),
    ],
)
def test_a_claim_has_the_same_states_as_a_pod(status, state):
    assert state_of_claim(_pod(status)) == state

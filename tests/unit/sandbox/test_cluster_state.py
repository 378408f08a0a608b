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


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        (KILLED, "OOMKilled (exit status 137)"),
        (OVER_DISK, "Evicted: Pod ephemeral local storage usage exceeds"),
        (_terminated("Error", 1), "Error (exit status 1)"),
        (_terminated("Error", 137), "Error (exit status 137)"),
        (_terminated("Error", 139), "Error (exit status 139)"),
    ],
)
def test_what_ran_in_a_pod_may_have_ended_it(status, ended):
    state = state_of_pod(_pod(status))
    assert state.ended.startswith(ended)
    assert state.by_program


DELETED = {"deletionTimestamp": "2026-03-04T12:00:00Z"}


@pytest.mark.parametrize(
    ("status", "metadata", "ended"),
    [
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, {}, "DeadlineExceeded"),
        (
            {"phase": "Failed"} | _disrupted("PreemptionByScheduler"), {}, "PreemptionByScheduler",
        ),
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
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, {}, "UnexpectedAdmission"),
        ({"phase": "Succeeded"}, {}, "Succeeded"),
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


def test_a_collected_pod_was_over_its_memory_all_the_same():
    state = state_of_pod(_pod(KILLED, **DELETED))
    assert (state.ended, state.by_program) == ("OOMKilled (exit status 137)", True)


def test_a_running_pod_names_the_image_that_its_node_has():
    status = {"phase": "Running", "podIP": "10.0.0.7"}
    status["containerStatuses"] = [{"imageID": "registry.example/one@sha256:77"}]
    assert state_of_pod(_pod(status)).image_id == "registry.example/one@sha256:77"


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
            {
                "conditions": [{"type": "Ready", "status": "False"}],
                "sandbox": {"name": "w", "podIPs": ["10.0.0.8"]},
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

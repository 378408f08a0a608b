"""What a cluster says of one sandbox, read from its pod or its claim."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from espalier.cluster.objects.names import K8sObject


class ClusterState(NamedTuple):
    """How far a sandbox is.

    Attributes:
        address: of the pod, once its container runs.
        ended: why it is over, empty while it is not.
        waits_for: why it does not run yet, as far as the cluster tells.
        is_unschedulable: no node has room for it now.
        is_gone: nothing of it is left; one that ended may still be there.
    """

    address: str | None = None
    ended: str = ""
    waits_for: str = ""
    is_unschedulable: bool = False
    is_gone: bool = False


GONE = ClusterState(ended="it was deleted", is_gone=True)


def state_of_pod(pod: K8sObject) -> ClusterState:
    """Read a pod; one that is being deleted is over."""
    status: dict[str, Any] = pod.get("status", {})
    phase = status.get("phase", "Pending")
    if phase in {"Failed", "Succeeded"}:
        return ClusterState(ended=_why_ended(status))
    if "deletionTimestamp" in pod["metadata"]:
        return ClusterState(ended=_interrupted(status) or GONE.ended)
    if phase == "Running" and status.get("podIP"):
        return ClusterState(address=status["podIP"])
    scheduled = _condition(status, "PodScheduled")
    waits_for = scheduled.get("message", "") or "; ".join(_waiting(status)) or phase
    return ClusterState(
        waits_for=waits_for, is_unschedulable=scheduled.get("reason") == "Unschedulable"
    )


def state_of_claim(claim: K8sObject) -> ClusterState:
    """Read a SandboxClaim of agent-sandbox: its conditions, and the sandbox that it was given."""
    status: dict[str, Any] = claim.get("status", {})
    if "deletionTimestamp" in claim["metadata"]:
        return ClusterState(ended=GONE.ended)
    finished, ready = _condition(status, "Finished"), _condition(status, "Ready")
    if finished.get("status") == "True":
        return ClusterState(ended=_told(finished))
    addresses = status.get("sandbox", {}).get("podIPs") or [None]
    if ready.get("status") == "True" and addresses[0]:
        return ClusterState(address=addresses[0])
    return ClusterState(waits_for=_told(ready) or "its claim")


def _why_ended(status: dict[str, Any]) -> str:
    """The pod's own reason (Evicted, DeadlineExceeded), else how its container ended."""
    said = _told(status) or _interrupted(status)
    for container in status.get("containerStatuses", []):
        ended = container.get("state", {}).get("terminated")
        if ended and not said:
            said = f"{_told(ended)} (exit status {ended.get('exitCode')})"
    return said or status["phase"]


def _interrupted(status: dict[str, Any]) -> str:
    """Why the cluster takes a pod away: preempted, drained, the node lost or under pressure."""
    return _told(_condition(status, "DisruptionTarget"))


def _waiting(status: dict[str, Any]) -> Iterable[str]:
    for container in status.get("containerStatuses", []):
        if waiting := container.get("state", {}).get("waiting"):
            yield _told(waiting)


def _condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})


def _told(said: dict[str, Any]) -> str:
    return ": ".join(filter(None, (said.get("reason", ""), said.get("message", ""))))

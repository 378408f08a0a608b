"""Requests to the API server for the Kubernetes backend, and one watch for all its sandboxes."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from espalier.cluster.kubernetes_api import (
    CONFLICT,
    NOT_FOUND,
    TOO_MANY_REQUESTS,
    ApiError,
    ApiRequest,
    ApiRetries,
    AsyncKubernetesApi,
    cluster_configuration,
)
from espalier.cluster.objects.names import K8sObject
from espalier.cluster.watches import Changed, ResourceWatch, WatchSettings
from espalier.records import ClusterError
from espalier.sandbox.protocol import SandboxError, SandboxQuota, SandboxTimeout, SandboxUnavailable

RETRIES = ApiRetries(attempts=7, first_pause_s=0.25, also=frozenset({CONFLICT}))
"""8 to 16 s of retries in all, as an API server restarts in seconds. A failed create of a sandbox
is retried by the pool, under a new name."""
_FORBIDDEN = 403


class NotFoundError(SandboxError):
    """The object or its kind does not exist."""


class ApiServer:
    """Sends requests to a cluster (kubeconfig None: this pod's own); raises sandbox errors."""

    def __init__(self, kubeconfig: Path | None) -> None:
        try:
            self._api = AsyncKubernetesApi(cluster_configuration(kubeconfig), RETRIES)
        except ClusterError as error:
            raise SandboxUnavailable(f"no cluster for sandboxes: {error}") from error
        self.requests = self._api.sent

    async def send(self, request: ApiRequest) -> K8sObject:
        """Send a request and return the object in the response.

        Raises:
            NotFoundError: the object does not exist.
            SandboxQuota: a conflict, too many requests, or the quota is used up.
            SandboxTimeout: the server is unreachable or fails.
            SandboxUnavailable: the request is forbidden or invalid.
        """
        try:
            return await self._api.send(request)
        except ApiError as error:
            raise _sandbox_error(error) from error

    async def follow(
        self, path: str, selector: str, changed: Changed, settings: WatchSettings
    ) -> ResourceWatch:
        """List and watch the objects below a path that match a selector.

        Raises:
            SandboxError: as `send`.
        """
        watch = ResourceWatch(self._api, path, selector, changed, settings)
        try:
            await watch.start()
        except ApiError as error:
            raise _sandbox_error(error) from error
        return watch

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()


def _sandbox_error(error: ApiError) -> SandboxError:
    message = str(error)
    if error.status == NOT_FOUND:
        return NotFoundError(message)
    if error.status in (CONFLICT, TOO_MANY_REQUESTS):
        return SandboxQuota(message)
    if error.status == _FORBIDDEN and "exceeded quota" in message:
        return SandboxQuota(message)
    return SandboxTimeout(message) if error.is_transient else SandboxUnavailable(message)


class ClusterState(NamedTuple):
    """The state of a sandbox's pod or claim.

    Attributes:
        address: the pod's IP address, once its container runs.
        ended: why it ended; "" if it has not ended.
        by_program: whether a program in the pod ended it, rather than the cluster.
        image_id: the container's image with the digest that the node resolved.
        runtime_class: the RuntimeClass of a running pod; "" for a claim, which does not say.
        waits_for: why it does not run yet, if known.
        is_unschedulable: whether no node has room for it now.
        is_gone: whether the object is deleted; an ended one may still exist.
    """

    address: str | None = None
    ended: str = ""
    by_program: bool = False
    image_id: str = ""
    runtime_class: str = ""
    waits_for: str = ""
    is_unschedulable: bool = False
    is_gone: bool = False


GONE = ClusterState(ended="it was deleted", is_gone=True)


def state_of_pod(pod: K8sObject) -> ClusterState:
    """Return the state of a pod; one that is being deleted counts as ended."""
    status: dict[str, Any] = pod.get("status", {})
    phase = status.get("phase", "Pending")
    if phase in {"Failed", "Succeeded"}:
        # the pod's reason (Evicted, DeadlineExceeded), else how its container ended
        said = _reason(status) or _disruption(status)
        for ended in _terminated(status):
            said = said or f"{_reason(ended)} (exit status {ended.get('exitCode')})"
        return ClusterState(ended=said or phase, by_program=_ended_by_program(pod))
    if "deletionTimestamp" in pod["metadata"]:
        return ClusterState(ended=_disruption(status) or GONE.ended)
    if phase == "Running" and status.get("podIP"):
        image_ids = [one.get("imageID", "") for one in status.get("containerStatuses", [])]
        return ClusterState(
            address=status["podIP"],
            image_id=next(iter(image_ids), ""),
            runtime_class=pod.get("spec", {}).get("runtimeClassName", ""),
        )
    scheduled = _condition(status, "PodScheduled")
    containers = [one.get("state", {}) for one in status.get("containerStatuses", [])]
    reasons = [_reason(state["waiting"]) for state in containers if state.get("waiting")]
    return ClusterState(
        waits_for=scheduled.get("message", "") or "; ".join(reasons) or phase,
        is_unschedulable=scheduled.get("reason") == "Unschedulable",
    )


def state_of_claim(claim: K8sObject) -> ClusterState:
    """Return the state of an agent-sandbox SandboxClaim from its conditions and its pod's address.

    A claim keeps its address as long as it has a pod, ready or not: a pod that fails its probe for
    a while still exists. If the pod is deleted, the controller replaces it by one with another
    address.
    """
    status: dict[str, Any] = claim.get("status", {})
    if "deletionTimestamp" in claim["metadata"]:
        return ClusterState(ended=GONE.ended)
    finished, ready = _condition(status, "Finished"), _condition(status, "Ready")
    if finished.get("status") == "True":
        return ClusterState(ended=_reason(finished))
    if addresses := status.get("sandbox", {}).get("podIPs"):
        return ClusterState(address=addresses[0])
    return ClusterState(waits_for=_reason(ready) or "its claim")


_OUT_OF_MEMORY = "OOMKilled"
_ASKED_TO_END = frozenset({0, 128 + signal.SIGTERM})
"""Exit statuses of sandboxd after a signal, which no program in the sandbox can send it."""


def _ended_by_program(pod: K8sObject) -> bool:
    """Return whether a program in an ended pod ended it.

    This holds if the pod exceeded its own limits (memory, disk), or if its container failed without
    being told to stop: sandboxd itself never fails. A removal by the cluster leaves a condition, a
    reason or a deletion time: an eviction from a node under pressure sets the condition
    DisruptionTarget, one for the pod's own disk limits does not. A node that loses a container
    reports ContainerStatusUnknown or Unknown, not Error.
    """
    status: dict[str, Any] = pod["status"]
    ends = _terminated(status)
    if _condition(status, "DisruptionTarget").get("status") == "True":
        return False
    if status.get("reason") == "Evicted" or any(e.get("reason") == _OUT_OF_MEMORY for e in ends):
        return True
    if status.get("reason") or "deletionTimestamp" in pod["metadata"]:
        return False
    return any(
        end.get("reason") == "Error" and end.get("exitCode") not in _ASKED_TO_END for end in ends
    )


def _terminated(status: dict[str, Any]) -> list[dict[str, Any]]:
    states = [one.get("state", {}) for one in status.get("containerStatuses", [])]
    return [state["terminated"] for state in states if state.get("terminated")]


def _disruption(status: dict[str, Any]) -> str:
    """Return why the cluster removes a pod: preemption, drain, node lost or under pressure."""
    return _reason(_condition(status, "DisruptionTarget"))


def _condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})


def _reason(said: dict[str, Any]) -> str:
    return ": ".join(filter(None, (said.get("reason", ""), said.get("message", ""))))


class ClusterWatch:
    """The last state of each sandbox of a run, updated by a single task.

    Args:
        server: the cluster's API server.
        path: the API path of the objects.
        selector: a label selector for this run's objects.
        state_of: returns the state of an object.
        settings: deadlines and pauses of the watch.
    """

    def __init__(
        self,
        server: ApiServer,
        path: str,
        selector: str,
        state_of: Callable[[K8sObject], ClusterState],
        settings: WatchSettings,
    ) -> None:
        self._server = server
        self._path = path
        self._selector = selector
        self._state_of = state_of
        self._settings = settings
        self._states: dict[str, ClusterState] = {}
        self._listeners: defaultdict[str, list[Callable[[ClusterState], None]]] = defaultdict(list)
        self._watch: ResourceWatch | None = None

    async def start(self) -> None:
        """List the objects once, then watch them in a task.

        Raises:
            SandboxError: the request is not allowed, or the server is unreachable.
        """
        self._watch = await self._server.follow(
            self._path, self._selector, self._on_change, self._settings
        )

    async def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            await self._watch.close()

    def subscribe(self, name: str, listener: Callable[[ClusterState], None]) -> Callable[[], None]:
        """Call `listener` with the state of a sandbox, now and on every change.

        Returns:
            A function that unsubscribes.
        """
        self._listeners[name].append(listener)
        if name in self._states:
            listener(self._states[name])
        return lambda: self._unsubscribe(name, listener)

    async def until(
        self, name: str, holds: Callable[[ClusterState], bool], within_s: float
    ) -> ClusterState:
        """Wait for the first state for which `holds` returns true.

        Raises:
            SandboxTimeout: no such state in time; the message has the last one.
        """
        reached: asyncio.Future[ClusterState] = asyncio.get_running_loop().create_future()

        def look(state: ClusterState) -> None:
            if holds(state) and not reached.done():
                reached.set_result(state)

        if self._watch is not None:
            self._watch.raise_fault()  # a bug: raise it here instead of timing out
        stop = self.subscribe(name, look)
        try:
            async with asyncio.timeout(within_s):
                return await reached
        except TimeoutError as error:
            last = self._states.get(
                name, ClusterState(waits_for="its first state from the API server")
            )
            reason = last.ended or last.waits_for or "it runs"
            raise SandboxTimeout(f"{name}: not within {within_s:g} s; {reason}") from error
        finally:
            stop()

    def _on_change(self, name: str, found: K8sObject | None) -> None:
        state = GONE if found is None else self._state_of(found)
        self._states[name] = state
        for listener in tuple(self._listeners.get(name, ())):
            listener(state)
        if state.is_gone and name not in self._listeners:
            del self._states[name]

    def _unsubscribe(self, name: str, listener: Callable[[ClusterState], None]) -> None:
        listeners = self._listeners.get(name, [])
        if listener in listeners:
            listeners.remove(listener)
        if not listeners:
            self._listeners.pop(name, None)
            if self._states.get(name, GONE).is_gone:
                self._states.pop(name, None)

"""What pods that do not become ready say about it, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from espalier.cluster.objects.names import MODEL_VERSION_ANNOTATION, K8sObject

_MAX_WORDS = 300
"""Characters of one container's last words: the end, which is where an error is."""


def pod_faults(pods: Iterable[K8sObject], version: str) -> str:
    """The faults of the pods of a version, each once."""
    faults: dict[str, None] = {}
    for pod in pods:
        annotations = pod["metadata"].get("annotations") or {}
        if annotations.get(MODEL_VERSION_ANNOTATION) == version:
            faults.update(dict.fromkeys(_faults(pod.get("status") or {})))
    return "; ".join(faults)


def _faults(status: K8sObject) -> Iterator[str]:
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield f"not scheduled: {condition.get('message', condition.get('reason', ''))}"
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason", "ContainerCreating") not in (
            "ContainerCreating",
            "PodInitializing",
        ):
            yield f"{container['name']}: {waiting['reason']}"
        for moment in ("state", "lastState"):
            ended = (container.get(moment) or {}).get("terminated")
            if ended:
                words = " ".join((ended.get("message") or "").split())[-_MAX_WORDS:]
                yield f"{container['name']}: exit {ended.get('exitCode')} {words}".rstrip()

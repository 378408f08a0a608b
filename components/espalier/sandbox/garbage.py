"""Collects sandboxes that nobody looks after any more; the CronJob of `k8s/` runs it.

by hand         python -m espalier.sandbox.garbage --namespace NAME --kubeconfig FILE
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from espalier.manifests.objects import K8sObject
from espalier.sandbox.api_server import cluster_configuration
from espalier.sandbox.pod import TTL_LABEL

SELECTOR = "app.kubernetes.io/name=espalier-sandbox"
_GRACE = timedelta(seconds=60)
"""Clocks of this pod, the trainer and the API server differ; a renewal may be on its way."""
_ENDED = frozenset({"Succeeded", "Failed"})
_GONE = frozenset({404, 409})
"""Deleted by somebody else, or changed since it was listed: nothing to do until the next round."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """What may go: a lease takes everything with it that it owns."""

    leases: Sequence[K8sObject]
    pods: Sequence[K8sObject]


def find_garbage(leases: Iterable[K8sObject], pods: Iterable[K8sObject], now: datetime) -> Garbage:
    """Leases that nobody renews, and pods that ended or are past their time to live.

    A pod whose lease is gone needs no help: Kubernetes collects it.
    """
    return Garbage(
        leases=[lease for lease in leases if _has_run_out(lease, now)],
        pods=[pod for pod in pods if _has_ended(pod, now)],
    )


def collect(namespace: str, now: datetime, *, kubeconfig: Path | None = None) -> Garbage:
    """Delete the garbage of `namespace`.

    Args:
        namespace: of the sandboxes.
        now: in UTC.
        kubeconfig: of the cluster; None is the cluster that this pod runs in.
    """
    from kubernetes import client

    connection = client.ApiClient(cluster_configuration(kubeconfig))
    core, coordination = client.CoreV1Api(connection), client.CoordinationV1Api(connection)
    garbage = find_garbage(
        _listed(coordination.list_namespaced_lease, namespace),
        _listed(core.list_namespaced_pod, namespace),
        now,
    )
    for lease in garbage.leases:
        _delete(coordination.delete_namespaced_lease, lease)
    for pod in garbage.pods:
        _delete(core.delete_namespaced_pod, pod)
    return garbage


def _listed(listing: Callable[..., Any], namespace: str) -> list[K8sObject]:
    answer = listing(namespace, label_selector=SELECTOR, _preload_content=False)
    return json.loads(answer.data)["items"]


def _delete(deletion: Callable[..., Any], found: K8sObject) -> None:
    """Delete what was judged, and not what it has become since: a renewed lease stays."""
    from kubernetes import client

    metadata = found["metadata"]
    as_judged = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    options = {"propagationPolicy": "Background", "preconditions": as_judged}
    try:
        deletion(metadata["name"], metadata["namespace"], body=options, _preload_content=False)
    except client.ApiException as refusal:
        if refusal.status not in _GONE:
            raise


def _has_run_out(lease: K8sObject, now: datetime) -> bool:
    spec = lease["spec"]
    renewed = spec.get("renewTime") or lease["metadata"]["creationTimestamp"]
    allowed = timedelta(seconds=spec.get("leaseDurationSeconds", 0))
    return datetime.fromisoformat(renewed) + allowed + _GRACE < now


def _has_ended(pod: K8sObject, now: datetime) -> bool:
    metadata = pod["metadata"]
    if "deletionTimestamp" in metadata:
        return False
    if pod["status"].get("phase") in _ENDED:
        return True
    ttl = metadata["labels"].get(TTL_LABEL, "")
    if not ttl.isdecimal():
        return False
    created = datetime.fromisoformat(metadata["creationTimestamp"])
    return created + timedelta(seconds=int(ttl)) + _GRACE < now


def main(arguments: Sequence[str] | None = None) -> None:
    """Collect once and say what went."""
    parser = argparse.ArgumentParser(prog="espalier.sandbox.garbage", description=__doc__)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--kubeconfig", type=Path, help="outside the cluster: its configuration")
    given = parser.parse_args(arguments)
    garbage = collect(given.namespace, datetime.now(UTC), kubeconfig=given.kubeconfig)
    for kind, found in (("lease", garbage.leases), ("pod", garbage.pods)):
        for gone in found:
            sys.stdout.write(f"deleted {kind} {given.namespace}/{gone['metadata']['name']}\n")


if __name__ == "__main__":
    main()

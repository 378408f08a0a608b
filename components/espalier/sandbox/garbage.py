"""Deletes expired leases and overdue sandbox pods; run by a CronJob of `k8s/`.

by hand         python -m espalier.sandbox.garbage --namespace NAME --kubeconfig FILE
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from espalier.cluster.kubernetes_api import (
    ApiRetries,
    KubernetesApi,
    cluster_configuration,
    delete,
    object_path,
    read,
)
from espalier.cluster.objects.names import K8sObject
from espalier.records import ClusterError
from espalier.sandbox.pod import TTL_LABEL

SELECTOR = "app.kubernetes.io/name=espalier-sandbox"
_GRACE = timedelta(seconds=60)
"""Allowance for clock differences and renewals in progress."""
_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Garbage:
    """Objects to delete; deleting a lease deletes everything that it owns."""

    leases: Sequence[K8sObject]
    pods: Sequence[K8sObject]


def find_garbage(leases: Iterable[K8sObject], pods: Iterable[K8sObject], now: datetime) -> Garbage:
    """Return expired leases, and pods that ended or exceeded their time to live.

    Kubernetes itself deletes pods whose lease is gone.
    """
    return Garbage(
        leases=[lease for lease in leases if _has_run_out(lease, now)],
        pods=[pod for pod in pods if _has_ended(pod, now)],
    )


def collect(namespace: str, now: datetime, *, kubeconfig: Path | None = None) -> Garbage:
    """Delete the garbage in `namespace` and return it.

    Args:
        namespace: the namespace of the sandboxes.
        now: the current time in UTC.
        kubeconfig: configuration of the cluster; None means the cluster of this pod.

    Raises:
        ClusterError: the API server is unreachable or refuses.
    """
    api = KubernetesApi(cluster_configuration(kubeconfig), ApiRetries())
    leases = object_path("coordination.k8s.io/v1", "leases", namespace)
    pods = object_path("v1", "pods", namespace)
    garbage = find_garbage(_listed(api, leases), _listed(api, pods), now)
    for folder, found in ((leases, garbage.leases), (pods, garbage.pods)):
        for one in found:
            _delete(api, folder, one)
    return garbage


def _listed(api: KubernetesApi, folder: str) -> list[K8sObject]:
    return api.send(read(folder, labelSelector=SELECTOR))["items"]


def _delete(api: KubernetesApi, folder: str, found: K8sObject) -> None:
    """Delete the object only if it is unchanged: a lease renewed in the meantime stays."""
    metadata = found["metadata"]
    api.discard(
        delete(
            f"{folder}/{metadata['name']}",
            uid=metadata["uid"],
            resourceVersion=metadata["resourceVersion"],
        )
    )


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
    """Collect once and print the deleted objects."""
    parser = argparse.ArgumentParser(prog="espalier.sandbox.garbage", description=__doc__)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--kubeconfig", type=Path, help="outside the cluster: its configuration")
    given = parser.parse_args(arguments)
    try:
        garbage = collect(given.namespace, datetime.now(UTC), kubeconfig=given.kubeconfig)
    except ClusterError as error:
        sys.exit(f"error: {error}")
    for kind, found in (("lease", garbage.leases), ("pod", garbage.pods)):
        for gone in found:
            sys.stdout.write(f"deleted {kind} {given.namespace}/{gone['metadata']['name']}\n")


if __name__ == "__main__":
    main()

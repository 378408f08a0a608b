"""The lease of a run in the sandbox namespace: it owns the sandboxes, and its holder renews it.

A pod cannot be owned from another namespace, so the trainer does not own its sandboxes itself. It
holds this lease; when the trainer is gone the lease runs out, the collector deletes it, and
Kubernetes deletes everything that it owns.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from espalier.cluster.objects.names import K8sObject, Owner, object_labels, run_object_name

API_VERSION = "coordination.k8s.io/v1"
DURATION_S = 120
"""A trainer that did not renew for so long is gone; it renews several times in that time."""


def run_lease(
    run_id: str, *, namespace: str, holder: str, now: datetime, labels: Mapping[str, str]
) -> K8sObject:
    """The lease as it is created, held from `now` on.

    Args:
        run_id: names the lease.
        namespace: of the sandboxes.
        holder: who renews, such as the name of the trainer's pod; for people to read.
        now: in UTC.
        labels: `kubernetes.labels` of the profile.

    Raises:
        ManifestError: `run_id` cannot be part of a name.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": "Lease",
        "metadata": {
            "name": run_object_name(run_id, "sandboxes"),
            "namespace": namespace,
            "labels": object_labels("espalier-sandbox", "sandbox-lease", run_id, labels),
        },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": DURATION_S,
            "acquireTime": micro_time(now),
            "renewTime": micro_time(now),
        },
    }


def renewed(now: datetime) -> K8sObject:
    """The merge patch that renews a lease."""
    return {"spec": {"renewTime": micro_time(now)}}


def lease_owner(name: str, uid: str) -> Owner:
    """The lease as the owner of sandboxes, once the API server has given it a uid."""
    return Owner(api_version=API_VERSION, kind="Lease", name=name, uid=uid)


def micro_time(moment: datetime) -> str:
    """RFC 3339 with microseconds and Z, which is how the API server spells lease times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

"""Deletes launched objects whose run has ended or was stopped; run by a CronJob of `k8s/`.

by hand     python -m espalier.cluster.launched_garbage --namespace NAME --kubeconfig FILE

The object of a Kubeflow run is owned by the run's Workflow, which Argo keeps for an hour after its
end. A stopped step has no time to delete the object, and the next attempt of a step that lost its
node continues with it. The object of a Job is owned by the Job, which is kept for its log; if the
Job's last pod was killed, the object was not deleted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from espalier.cluster.kubernetes_api import (
    NOT_FOUND,
    ApiError,
    ApiRetries,
    KubernetesApi,
    cluster_configuration,
    delete,
    object_path,
    read,
)
from espalier.cluster.objects.kinds import LAUNCHED_KINDS
from espalier.cluster.objects.launched import LaunchedKind
from espalier.cluster.objects.names import NAME_LABEL, K8sObject
from espalier.records import ClusterError

_ENDED_PHASES = frozenset({"Succeeded", "Failed", "Error"})


def _workflow_has_ended(workflow: K8sObject) -> bool:
    is_stopped = bool(workflow["spec"].get("shutdown"))
    return is_stopped or (workflow.get("status") or {}).get("phase") in _ENDED_PHASES


def _job_has_ended(job: K8sObject) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(
        entry["type"] in ("Complete", "Failed") and entry["status"] == "True"
        for entry in conditions
    )


_OWNERS: dict[tuple[str, str], tuple[str, Callable[[K8sObject], bool]]] = {
    ("argoproj.io/v1alpha1", "Workflow"): ("workflows", _workflow_has_ended),
    ("batch/v1", "Job"): ("jobs", _job_has_ended),
}
"""API version and kind of owners -> their plural, and a test whether an owner has ended."""


def is_abandoned(kind: LaunchedKind, launched: K8sObject, owner: K8sObject | None) -> bool:
    """Whether the launched object still runs although its owner has ended or was deleted.

    Args:
        kind: the object's kind.
        launched: the object.
        owner: the Workflow or Job that owns it; None if it does not exist.
    """
    if "deletionTimestamp" in launched["metadata"]:
        return False
    # an ended object uses nothing; its operator and its owner keep it for the logs
    if kind.status(launched).has_ended:
        return False
    reference = _owner_reference(launched)
    if reference is None:
        return False
    if owner is None or owner["metadata"]["uid"] != reference["uid"]:
        return True
    _, has_ended = _OWNERS[reference["apiVersion"], reference["kind"]]
    return has_ended(owner)


def collect(namespace: str, *, kubeconfig: Path | None = None) -> list[tuple[str, str]]:
    """Delete the abandoned objects of `namespace` and return their kinds and names.

    Args:
        namespace: namespace of the runs.
        kubeconfig: file with the cluster's address; None means the cluster of this pod.

    Raises:
        ClusterError: the API server is unreachable or refuses.
    """
    api = KubernetesApi(cluster_configuration(kubeconfig), ApiRetries())
    deleted = []
    for kind in LAUNCHED_KINDS:
        folder = object_path(kind.api_version, kind.plural, namespace)
        try:
            listed = api.send(read(folder, labelSelector=f"{NAME_LABEL}={kind.label}"))["items"]
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            continue  # the kind's operator is not installed
        for launched in listed:
            reference = _owner_reference(launched)
            if reference is None:
                continue
            plural, _ = _OWNERS[reference["apiVersion"], reference["kind"]]
            owner = api.find(
                object_path(reference["apiVersion"], plural, namespace, reference["name"])
            )
            metadata = launched["metadata"]
            if is_abandoned(kind, launched, owner) and api.discard(
                delete(f"{folder}/{metadata['name']}", uid=metadata["uid"])
            ):
                deleted.append((kind.kind, metadata["name"]))
    return deleted


def _owner_reference(launched: K8sObject) -> K8sObject | None:
    """The reference to the Workflow or Job that owns it; None if neither does."""
    references = launched["metadata"].get("ownerReferences") or ()
    owners = [one for one in references if (one["apiVersion"], one["kind"]) in _OWNERS]
    return owners[0] if owners else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Collect once and print the deleted objects."""
    parser = argparse.ArgumentParser(prog="espalier.cluster.launched_garbage", description=__doc__)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--kubeconfig", type=Path, help="needed outside the cluster")
    given = parser.parse_args(arguments)
    try:
        deleted = collect(given.namespace, kubeconfig=given.kubeconfig)
    except ClusterError as error:
        sys.exit(f"error: {error}")
    for kind, name in deleted:
        sys.stdout.write(f"deleted {kind} {given.namespace}/{name}\n")


if __name__ == "__main__":
    main()

"""Deletes RayJobs whose run of Kubeflow has ended or was stopped; run by a CronJob of `k8s/`.

by hand         python -m espalier.cluster.ray_garbage --namespace NAME --kubeconfig FILE

The RayJob belongs to the run's Workflow, which Argo keeps for an hour after its end. A step that is
stopped has no time to delete it, and one that lost its node has a successor that goes on with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
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
from espalier.cluster.objects.job import RAY_NAME
from espalier.cluster.objects.names import NAME_LABEL, K8sObject
from espalier.cluster.ray_jobs import ENDED_STATES
from espalier.records import ClusterError

_WORKFLOW = ("argoproj.io/v1alpha1", "Workflow")
_ENDED_PHASES = frozenset({"Succeeded", "Failed", "Error"})


def is_abandoned(job: K8sObject, workflow: K8sObject | None) -> bool:
    """Whether nobody waits for the RayJob any more.

    Args:
        job: a RayJob.
        workflow: its owner; None if there is none of that name.
    """
    if "deletionTimestamp" in job["metadata"]:
        return False
    # KubeRay shuts down what has ended, after the time that is left for its logs
    if (job.get("status") or {}).get("jobDeploymentStatus") in ENDED_STATES:
        return False
    owner = _workflow_of(job)
    if workflow is None or workflow["metadata"]["uid"] != (owner or {}).get("uid"):
        return True
    is_stopped = bool(workflow["spec"].get("shutdown"))
    return is_stopped or (workflow.get("status") or {}).get("phase") in _ENDED_PHASES


def collect(namespace: str, *, kubeconfig: Path | None = None) -> list[str]:
    """Delete the abandoned RayJobs of `namespace` and return their names.

    RayJobs of the stages' Jobs are left alone.

    Args:
        namespace: of Kubeflow's runs.
        kubeconfig: of the cluster; None means the cluster of this pod.

    Raises:
        ClusterError: the API server is unreachable or refuses.
    """
    api = KubernetesApi(cluster_configuration(kubeconfig), ApiRetries())
    folder = object_path("ray.io/v1", "rayjobs", namespace)
    deleted = []
    for job in _ray_jobs(api, folder):
        owner = _workflow_of(job)
        if owner is None:
            continue
        workflow = api.find(object_path(_WORKFLOW[0], "workflows", namespace, owner["name"]))
        metadata = job["metadata"]
        if is_abandoned(job, workflow) and api.discard(
            delete(f"{folder}/{metadata['name']}", uid=metadata["uid"])
        ):
            deleted.append(metadata["name"])
    return deleted


def _ray_jobs(api: KubernetesApi, folder: str) -> list[K8sObject]:
    """Those of espalier; none where KubeRay is not installed."""
    try:
        return api.send(read(folder, labelSelector=f"{NAME_LABEL}={RAY_NAME}"))["items"]
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return []


def _workflow_of(job: K8sObject) -> K8sObject | None:
    """The reference to the owner; None if that is no Workflow."""
    references = job["metadata"].get("ownerReferences") or ()
    owners = [one for one in references if (one["apiVersion"], one["kind"]) == _WORKFLOW]
    return owners[0] if owners else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Collect once and print what was deleted."""
    parser = argparse.ArgumentParser(prog="espalier.cluster.ray_garbage", description=__doc__)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--kubeconfig", type=Path, help="outside the cluster: its configuration")
    given = parser.parse_args(arguments)
    try:
        deleted = collect(given.namespace, kubeconfig=given.kubeconfig)
    except ClusterError as error:
        sys.exit(f"error: {error}")
    for name in deleted:
        sys.stdout.write(f"deleted RayJob {given.namespace}/{name}\n")


if __name__ == "__main__":
    main()

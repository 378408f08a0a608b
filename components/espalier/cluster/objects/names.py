"""Names, labels and owner references of a run's objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from espalier.records import ManifestError

K8sObject: TypeAlias = dict[str, Any]
"""A Kubernetes object as JSON."""

NAME_LABEL = "app.kubernetes.io/name"
RUN_LABEL = "espalier.dev/run"
STAGE_LABEL = "espalier.dev/stage"
INSTANCE_LABEL = "app.kubernetes.io/instance"
OWN_LABEL_VARIABLES = {RUN_LABEL: "ESPALIER_LABEL_RUN", STAGE_LABEL: "ESPALIER_LABEL_STAGE"}
"""Label of a step's pod -> variable with its value, from which the step's sandboxes get the same
label, so that their costs count for the run and stage."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
MODEL_VERSION_ANNOTATION = "espalier.dev/model-version"

_RUN_ID = re.compile(r"[a-z0-9]([-a-z0-9]{0,34}[a-z0-9])?")


class Owner(NamedTuple):
    """Owner of objects in its namespace, which are deleted with it."""

    api_version: str
    kind: str
    name: str
    uid: str

    def reference(self) -> K8sObject:
        """The entry of `metadata.ownerReferences`.

        blockOwnerDeletion is false because it requires rights on the owner's finalizers.
        """
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": False,
            "blockOwnerDeletion": False,
        }


def object_labels(name: str, component: str, run_id: str, own: Mapping[str, str]) -> dict[str, str]:
    """Labels recommended by Kubernetes, the run's label, and those of the profile.

    Args:
        name: program, such as espalier-step.
        component: role, such as step or sandbox.
        run_id: from `checked_run_id`.
        own: `kubernetes.labels` of the profile.
    """
    return {
        NAME_LABEL: name,
        INSTANCE_LABEL: run_id,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "espalier",
        "app.kubernetes.io/managed-by": "espalier",
        RUN_LABEL: run_id,
        **own,
    }


def may_reach(*destinations: str) -> dict[str, str]:
    """Labels to which the network policies of `k8s/` allow egress to s3, mlflow, sandboxes, ..."""
    return {f"espalier.dev/may-reach-{destination}": "true" for destination in destinations}


def episode_reach() -> dict[str, str]:
    """Labels that open the network policies for a pod that plays episodes."""
    return may_reach("s3", "mlflow", "kubernetes", "sandboxes", "rollout")


def labels_of_this_pod(environment: Mapping[str, str]) -> dict[str, str]:
    """Labels of run and stage of this process' pod; empty outside a step's pod."""
    found = {label: environment.get(name) for label, name in OWN_LABEL_VARIABLES.items()}
    return {label: value for label, value in found.items() if value}


def checked_run_id(run_id: str) -> str:
    """Check that `run_id` can be part of an object's name.

    At most 36 characters: a UUID fits, and KubeRay allows names of up to 47.

    Raises:
        ManifestError: it has other characters or is too long.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise ManifestError(
            f"{run_id!r} cannot name a run on a cluster: lower-case letters, digits and dashes, "
            "at most 36 of them, first and last no dash"
        )
    return run_id


def run_object_name(run_id: str, part: str) -> str:
    """Name of a part of a run, such as r17-warm-start; at most 63 characters."""
    return f"{checked_run_id(run_id)}-{part.replace('_', '-')}"

"""LLMInferenceServices of KServe that serve a version: one for each track, in one routing group.

Wire format: serving.kserve.io/v1alpha2 of KServe 0.20.0
(pkg/apis/serving/v1alpha2/llm_inference_service_types.go); `spec.router.route.group` and `weight`
share the traffic of a group's members in proportion (pkg/controller/v1alpha2/llmisvc/
router_group.go), and the annotation serving.kserve.io/stop takes a member's pods and traffic away.
"""

from __future__ import annotations

from typing import NamedTuple

from espalier.cluster.objects.names import (
    MODEL_VERSION_ANNOTATION,
    NAME_LABEL,
    QUEUE_LABEL,
    K8sObject,
)
from espalier.cluster.objects.serving import DIGEST_ANNOTATION, WEIGHT_ANNOTATION

API_VERSION = "serving.kserve.io/v1alpha2"
KIND = "LLMInferenceService"
PLURAL = "llminferenceservices"
CONFIG = "espalier-serving"
"""The LLMInferenceServiceConfig of `k8s/overlays/kserve`: image, GPUs and number of the pods."""
GROUP = "espalier-serving"
"""The routing group of both tracks."""
STABLE, CANARY = "espalier-serving-stable", "espalier-serving-canary"
STOP_ANNOTATION = "serving.kserve.io/stop"
SCALE = 1000
"""Of weights: a share of 0.1 is 100 beside 900."""
_WORKLOAD_SERVICE, _WORKLOAD = "-kserve-workload-svc", "-kserve"
"""Behind the name of a member: the Service of its own pods, and the Deployment that KServe makes of
it (workload.go and workload_single_node.go of the same folder)."""


def weights(share: float) -> tuple[int, int]:
    """Weights of the stable track and of the canary."""
    canary = round(share * SCALE)
    return SCALE - canary, canary


def workload_service(name: str) -> str:
    """The Service that reaches the pods of one member alone."""
    return name + _WORKLOAD_SERVICE


def workload_deployment(name: str) -> str:
    """The Deployment that KServe makes of a member."""
    return name + _WORKLOAD


class LlmModel(NamedTuple):
    """What a member serves."""

    name: str
    """Registered model; clients ask for it, and all members of a group have it."""
    version: str
    uri: str
    """s3:// address of the version's files, which KServe's storage initializer fetches."""
    policy_digest: str
    """For people: nothing in the pod compares files with it."""


def llm_inference_service(
    name: str, model: LlmModel, *, namespace: str, weight: int, queue: str | None = None
) -> K8sObject:
    """The LLMInferenceService of a track, as the controller applies it.

    Image, GPUs and number of its pods are those of the LLMInferenceServiceConfig that is its base,
    which `k8s/overlays/kserve` installs.

    Args:
        name: STABLE or CANARY.
        model: that it serves.
        namespace: of the members.
        weight: of the member, of SCALE.
        queue: Kueue's LocalQueue; KServe gives labels of kueue.x-k8s.io on to Deployment and pods.
    """
    labels = {
        NAME_LABEL: name,
        "app.kubernetes.io/component": "serving",
        "app.kubernetes.io/part-of": "espalier",
        **({QUEUE_LABEL: queue} if queue else {}),
    }
    stamped = {
        MODEL_VERSION_ANNOTATION: model.version,
        DIGEST_ANNOTATION: model.policy_digest,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": stamped,
        },
        "spec": {
            "baseRefs": [{"name": CONFIG}],
            "annotations": stamped,  # of the pods
            "model": {"name": model.name, "uri": model.uri},
            "router": {"route": {"group": GROUP, "weight": weight, "http": {}}},
        },
    }


def weighted(weight: int, share: float | None = None) -> K8sObject:
    """A merge patch of a member's weight; of the canary's, with the share that was asked for."""
    noted = {} if share is None else {"metadata": {"annotations": _asked(share)}}
    route = {"group": GROUP, "weight": weight}
    return {**noted, "spec": {"router": {"route": route}}}


def _asked(share: float) -> dict[str, str]:
    return {WEIGHT_ANNOTATION: str(float(share))}


def started(share: float) -> K8sObject:
    """A merge patch that gives a stopped member its pods, before any traffic."""
    return {"metadata": {"annotations": {STOP_ANNOTATION: None, **_asked(share)}}}


def stopped() -> K8sObject:
    """A merge patch that takes a member's pods and its weight away."""
    annotations = {STOP_ANNOTATION: "true", WEIGHT_ANNOTATION: None}
    return {"metadata": {"annotations": annotations}, **weighted(0)}

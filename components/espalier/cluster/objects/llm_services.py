"""The LLMInferenceService of KServe that serves a version.

Wire format: serving.kserve.io/v1alpha2 of KServe 0.20.0
(pkg/apis/serving/v1alpha2/llm_inference_service_types.go).
"""

from __future__ import annotations

from typing import NamedTuple

from espalier.cluster.objects.names import (
    MODEL_VERSION_ANNOTATION,
    NAME_LABEL,
    QUEUE_LABEL,
    K8sObject,
)
from espalier.cluster.objects.serving import DIGEST_ANNOTATION

API_VERSION = "serving.kserve.io/v1alpha2"
KIND = "LLMInferenceService"
PLURAL = "llminferenceservices"
NAME = "espalier-serving"
CONFIG = "espalier-serving"
"""The LLMInferenceServiceConfig of `k8s/overlays/kserve`: image, GPUs and number of the pods."""
WORKLOAD_SERVICE, WORKLOAD_DEPLOYMENT = f"{NAME}-kserve-workload-svc", f"{NAME}-kserve"
"""What KServe makes of it: the Service of its pods, and their Deployment (workload.go and
workload_single_node.go in pkg/controller/v1alpha2/llmisvc)."""


class LlmModel(NamedTuple):
    """The model version of an LLMInferenceService."""

    name: str
    """Registered model; clients ask for it."""
    version: str
    uri: str
    """s3:// address of the version's files, which KServe's storage initializer fetches."""
    policy_digest: str
    """For people: nothing in the pod compares files with it."""


def llm_inference_service(
    model: LlmModel, *, namespace: str, queue: str | None = None
) -> K8sObject:
    """The LLMInferenceService, as the controller applies it.

    Image, GPUs and number of its pods are those of the LLMInferenceServiceConfig that is its base,
    which `k8s/overlays/kserve` installs. Group and weight of its route are left to others: KServe
    shares traffic by them.

    Args:
        model: that it serves.
        namespace: of the pipeline.
        queue: Kueue's LocalQueue; KServe gives labels of kueue.x-k8s.io on to Deployment and pods.
    """
    labels = {
        NAME_LABEL: NAME,
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
            "name": NAME,
            "namespace": namespace,
            "labels": labels,
            "annotations": stamped,
        },
        "spec": {
            "baseRefs": [{"name": CONFIG}],
            "annotations": stamped,  # of the pods
            "model": {"name": model.name, "uri": model.uri},
            "router": {"route": {"http": {}}},
        },
    }

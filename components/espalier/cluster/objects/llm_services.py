"""KServe's LLMInferenceService that serves a model version.

Format: serving.kserve.io/v1alpha2 of KServe 0.20.0
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
"""Names of the Service and the Deployment that KServe creates for it (workload.go and
workload_single_node.go in pkg/controller/v1alpha2/llmisvc)."""


class LlmModel(NamedTuple):
    """The model version of an LLMInferenceService."""

    name: str
    """Registered model; the value of `model` in requests."""
    version: str
    uri: str
    """s3:// URI of the version's files, which KServe's storage initializer fetches."""
    policy_digest: str
    """Digest for an annotation; the pod does not check its files against it."""


def llm_inference_service(
    model: LlmModel, *, namespace: str, queue: str | None = None
) -> K8sObject:
    """The LLMInferenceService's fields that the controller applies.

    Image, GPUs and number of pods come from its base, the LLMInferenceServiceConfig that
    `k8s/overlays/kserve` installs. Group and weight of the route, by which KServe splits traffic,
    are left to other field managers.

    Args:
        model: the served version.
        namespace: namespace of the pipeline.
        queue: Kueue's LocalQueue; KServe copies labels of kueue.x-k8s.io to Deployment and pods.
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
            "annotations": stamped,  # annotations of the pods
            "model": {"name": model.name, "uri": model.uri},
            "router": {"route": {"http": {}}},
        },
    }

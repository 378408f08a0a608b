"""The model version in the serving Deployment."""

from __future__ import annotations

from espalier.cluster.objects.names import (
    MODEL_VERSION_ANNOTATION,
    QUEUE_LABEL,
    K8sObject,
)

DEPLOYMENT = "espalier-serving"
"""Name of the Deployment and of its Service."""
CONTAINER = "serving"
MODEL_VARIABLE = "ESPALIER_MODEL"
DIGEST_VARIABLE = "ESPALIER_POLICY_DIGEST"
KEYS_SECRET = "espalier-serving-keys"
"""Secret with the digests of the endpoint's API keys, and the controller's own key."""
KEYS_ENTRY, CONTROLLER_ENTRY = "api-keys", "controller"
KEY_VARIABLE = "ESPALIER_API_KEY"
"""Variable with the controller's API key."""
DIGEST_ANNOTATION = "espalier.dev/policy-digest"
FIELD_MANAGER = "espalier-serving-controller"


def version_reference(model_name: str, version: str) -> str:
    """The reference models:/NAME/VERSION."""
    return f"models:/{model_name}/{version}"


def served_version(
    model_name: str,
    version: str,
    *,
    policy_digest: str,
    namespace: str,
    queue: str | None = None,
) -> K8sObject:
    """The Deployment's fields that the controller owns: those that name the version.

    Server-side apply (field manager `espalier-serving-controller`) replaces the previous version
    and leaves all other fields. The changed pod template starts a rollout; applying the former
    version rolls back.

    Args:
        model_name: registered model in MLflow.
        version: version of that model; the pod loads `models:/NAME/VERSION`.
        policy_digest: digest of the approved version; the pod refuses other files.
        namespace: namespace of the pipeline.
        queue: Kueue's LocalQueue that admits the pods (Kueue v1beta2: a label of the Deployment,
            which may change only while none of its pods is ready).
    """
    annotations = {MODEL_VERSION_ANNOTATION: version, DIGEST_ANNOTATION: policy_digest}
    environment = {
        MODEL_VARIABLE: version_reference(model_name, version),
        DIGEST_VARIABLE: policy_digest,
    }
    entries = [{"name": name, "value": value} for name, value in environment.items()]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": DEPLOYMENT, "namespace": namespace, **_queued(queue)},
        "spec": {
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"containers": [{"name": CONTAINER, "env": entries}]},
            }
        },
    }


def _queued(queue: str | None) -> K8sObject:
    return {"labels": {QUEUE_LABEL: queue}} if queue else {}

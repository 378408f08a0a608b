"""The version that the serving Deployment is to serve."""

from __future__ import annotations

from espalier.manifests.objects import MODEL_VERSION_ANNOTATION, K8sObject

DEPLOYMENT = "espalier-serving"
CONTAINER = "serving"
MODEL_VARIABLE = "ESPALIER_MODEL"
DIGEST_VARIABLE = "ESPALIER_POLICY_DIGEST"


def served_version(model_name: str, version: int, *, namespace: str) -> K8sObject:
    """What the controller owns of the Deployment in `k8s/`: the version, and nothing else.

    Applied on the server (field manager `espalier-serving-controller`), it replaces the version
    that was applied before and leaves every other field to whoever installed the Deployment. The
    changed pod template is what makes Kubernetes roll; applying the former version rolls back.

    Args:
        model_name: registered model in MLflow.
        version: of that model; the pod loads `models:/NAME/VERSION`.
        namespace: of the pipeline.
    """
    model = f"models:/{model_name}/{version}"
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": DEPLOYMENT, "namespace": namespace},
        "spec": {
            "template": {
                "metadata": {"annotations": {MODEL_VERSION_ANNOTATION: str(version)}},
                "spec": {
                    "containers": [
                        {"name": CONTAINER, "env": [{"name": MODEL_VARIABLE, "value": model}]}
                    ]
                },
            }
        },
    }

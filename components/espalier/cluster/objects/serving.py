"""The model version in the serving Deployments, a canary's pods, and whom the Service leads to."""

from __future__ import annotations

import enum

from espalier.cluster.objects.names import (
    MODEL_VERSION_ANNOTATION,
    NAME_LABEL,
    QUEUE_LABEL,
    K8sObject,
)

DEPLOYMENT = "espalier-serving"
"""The stable track's Deployment, and the Service that clients ask."""
CANARY_DEPLOYMENT = "espalier-serving-canary"
"""The canary's Deployment, and the Service by which it alone is asked."""
STABLE_SERVICE = "espalier-serving-stable"
"""The Service by which the stable track alone is asked."""
SERVES_LABEL = {"espalier.dev/serves": "champion"}
"""Of the pods of both tracks."""
WEIGHT_ANNOTATION = "espalier.dev/weight"
"""On the canary's object: the share of the traffic that was asked for it."""
CONTAINER = "serving"
MODEL_VARIABLE = "ESPALIER_MODEL"
DIGEST_VARIABLE = "ESPALIER_POLICY_DIGEST"
KEYS_SECRET = "espalier-serving-keys"
"""Holds the digests of the endpoint's API keys, and the controller's own key."""
KEYS_ENTRY, CONTROLLER_ENTRY = "api-keys", "controller"
KEY_VARIABLE = "ESPALIER_API_KEY"
"""The key that the controller asks with."""
DIGEST_ANNOTATION = "espalier.dev/policy-digest"
FIELD_MANAGER = "espalier-serving-controller"


def version_reference(model_name: str, version: str) -> str:
    """The reference models:/NAME/VERSION."""
    return f"models:/{model_name}/{version}"


class Route(enum.Enum):
    """Whom the Service leads to."""

    STABLE = "stable"
    BOTH = "both"
    """Every pod of both tracks gets about the same number of connections."""
    CANARY = "canary"

    @property
    def selector(self) -> dict[str, str]:
        """The Service's selector; that of STABLE is what `k8s/` installs."""
        return {
            Route.STABLE: {NAME_LABEL: DEPLOYMENT},
            Route.BOTH: SERVES_LABEL,
            Route.CANARY: {NAME_LABEL: CANARY_DEPLOYMENT},
        }[self]

    @classmethod
    def of_weight(cls, weight: float) -> Route:
        """The route of a canary that is to get this share."""
        return cls.STABLE if weight <= 0 else cls.CANARY if weight >= 1 else cls.BOTH


def canary_replicas(weight: float, stable: int) -> int:
    """Pods of a canary beside so many of the stable track, whose number stays as it is.

    Of n beside m, n / (n + m) is the share of connections. The nearest one is taken, from 1 pod to
    as many as the stable track has: beside 9 a tenth is exact, beside 2 it is a third, and from a
    half to all there is nothing between. A share of 0 has one pod, which is judged, a share of 1 as
    many as the stable track.
    """
    most = max(stable, 1)
    if weight <= 0:
        return 1
    if weight >= 1:
        return most
    return min(range(1, most + 1), key=lambda count: abs(count / (count + stable) - weight))


def served_version(
    model_name: str,
    version: str,
    *,
    policy_digest: str,
    namespace: str,
    queue: str | None = None,
    deployment: str = DEPLOYMENT,
) -> K8sObject:
    """The fields of the Deployment in `k8s/` that the controller owns: the version alone.

    Server-side apply (field manager `espalier-serving-controller`) replaces the previous version
    and leaves all other fields. The changed pod template starts a rollout; applying the former
    version rolls back.

    Args:
        model_name: registered model in MLflow.
        version: of that model; the pod loads `models:/NAME/VERSION`.
        policy_digest: of the version when it was approved; the pod refuses other files.
        namespace: of the pipeline.
        queue: Kueue's LocalQueue that admits the pods (Kueue v1beta2: the label of a Deployment,
            which may change only while none of its pods is ready).
        deployment: of which track.
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
        "metadata": {"name": deployment, "namespace": namespace, **_queued(queue)},
        "spec": {
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"containers": [{"name": CONTAINER, "env": entries}]},
            }
        },
    }


def _queued(queue: str | None) -> K8sObject:
    return {"labels": {QUEUE_LABEL: queue}} if queue else {}


def canary_of(version: K8sObject, weight: float, replicas: int) -> K8sObject:
    """The same fields of the canary's Deployment, and its weight with the pods for it."""
    annotated = {**version["metadata"], "annotations": {WEIGHT_ANNOTATION: str(float(weight))}}
    spec = {**version["spec"], "replicas": replicas}
    return {**version, "metadata": annotated, "spec": spec}


def routed_service(route: Route, namespace: str) -> K8sObject:
    """The field of the Service in `k8s/` that the controller owns: whom it leads to."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": DEPLOYMENT, "namespace": namespace},
        "spec": {"selector": route.selector},
    }

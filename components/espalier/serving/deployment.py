"""Two Deployments behind one Service: read, roll, weigh, annotate, record events, find faults.

Shares of 0 and 1 are exact: the Service leads to one Deployment alone. Between, it leads to the
pods of both, each of which gets about the same number of new connections: the share is that of
pods (`canary_replicas`), approximate for the requests of clients that keep connections open. The
stable track's number of pods is never changed, so that it can answer alone at any moment.
"""

from __future__ import annotations

from espalier.cluster.kubernetes_api import (
    KubernetesApi,
    apply,
    merge,
    object_path,
    read,
)
from espalier.cluster.objects.names import NAME_LABEL, K8sObject
from espalier.cluster.objects.serving import (
    CANARY_DEPLOYMENT,
    DEPLOYMENT,
    FIELD_MANAGER,
    STABLE_SERVICE,
    WEIGHT_ANNOTATION,
    Route,
    canary_of,
    canary_replicas,
    routed_service,
    served_version,
    version_reference,
)
from espalier.records import ServingError
from espalier.serving.asking import Address
from espalier.serving.decision import (
    NO_CANARY,
    CanaryTrack,
    Champion,
    RolloutMemory,
    RolloutState,
    asked_version,
    rollout_progress,
)
from espalier.serving.tracks import TrackSettings, listed_faults, record_event, serving_errors


class ServingDeployments:
    """The serving Deployments and their Service in one namespace; see `ServingTracks`."""

    def __init__(self, api: KubernetesApi, settings: TrackSettings) -> None:
        namespace = settings.namespace
        self._api = api
        self._settings = settings
        self._namespace = namespace
        self._model = settings.model
        self._stable = object_path("apps/v1", "deployments", namespace, DEPLOYMENT)
        self._canary = object_path("apps/v1", "deployments", namespace, CANARY_DEPLOYMENT)
        self._service = object_path("v1", "services", namespace, DEPLOYMENT)
        self._replicas = 1

    def read(self) -> RolloutState:
        """See `ServingTracks.read`; without the canary's Deployment there is no canary."""
        with serving_errors():
            stable = self._api.send(read(self._stable, f"read the Deployment {DEPLOYMENT}"))
            canary = self._api.find(self._canary, f"read the Deployment {CANARY_DEPLOYMENT}")
            if canary is None:
                return RolloutState.read(stable, self._model)
            service = self._api.send(read(self._service, f"read the Service {DEPLOYMENT}"))
        self._replicas = stable["spec"].get("replicas", 1)
        return RolloutState.read(stable, self._model, self._canary_track(stable, canary, service))

    def roll(self, target: Champion) -> None:
        """See `ServingTracks.roll`: a rolling update."""
        self._apply(self._stable, self._version(target, DEPLOYMENT), f"roll {DEPLOYMENT}")

    def weigh(self, target: Champion, weight: float, state: RolloutState) -> None:
        """See `ServingTracks.weigh`."""
        canary = state.canary
        if canary is NO_CANARY:
            raise ServingError(
                f"there is no Deployment {CANARY_DEPLOYMENT} in {self._namespace}: apply k8s/ "
                "again, or set serving.canary.steps=[] for roll-outs without a canary"
            )
        if (canary.asked, canary.weight, canary.has_pods) == (target.version, weight, True):
            route = routed_service(Route.of_weight(weight), self._namespace)
            self._apply(self._service, route, f"route the Service {DEPLOYMENT}")
        else:
            pods = canary_replicas(weight, self._replicas)
            fields = canary_of(self._version(target, CANARY_DEPLOYMENT), weight, pods)
            self._apply(self._canary, fields, f"roll {CANARY_DEPLOYMENT}")

    def retreat(self) -> None:
        """See `ServingTracks.retreat`."""
        route = routed_service(Route.STABLE, self._namespace)
        self._apply(self._service, route, f"route the Service {DEPLOYMENT}")

    def end_canary(self) -> None:
        """See `ServingTracks.end_canary`."""
        without_pods = {
            "metadata": {"annotations": {WEIGHT_ANNOTATION: None}},
            "spec": {"replicas": 0},
        }
        purpose = f"end the Deployment {CANARY_DEPLOYMENT}"
        with serving_errors():
            self._api.send(merge(self._canary, without_pods, purpose, fieldManager=FIELD_MANAGER))

    def address(self, version: str, *, of_canary: bool) -> Address:
        """See `ServingTracks.address`; only pods of the version answer to its name."""
        service = CANARY_DEPLOYMENT if of_canary else STABLE_SERVICE
        default = f"http://{service}.{self._namespace}.svc:8000"
        url = self._settings.url(of_canary=of_canary, default=default)
        return Address(url, version_reference(self._model, version))

    def remember(self, memory: RolloutMemory, state: RolloutState) -> None:
        """See `ServingTracks.remember`."""
        metadata = {"annotations": memory.annotations, "resourceVersion": state.resource_version}
        purpose = f"annotate the Deployment {DEPLOYMENT}"
        with serving_errors():
            self._api.send(
                merge(self._stable, {"metadata": metadata}, purpose, fieldManager=FIELD_MANAGER)
            )

    def faults(self, version: str) -> str:
        """See `ServingTracks.faults`."""
        selector = f"{NAME_LABEL} in ({DEPLOYMENT},{CANARY_DEPLOYMENT})"
        return listed_faults(self._api, self._namespace, selector, version)

    def record(self, reason: str, note: str, state: RolloutState, *, warns: bool) -> None:
        """See `ServingTracks.record`."""
        about = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": DEPLOYMENT,
            "namespace": self._namespace,
            "uid": state.uid,
        }
        record_event(self._api, reason, note, about, warns=warns)

    def _version(self, target: Champion, deployment: str) -> K8sObject:
        return served_version(
            self._model,
            target.version,
            policy_digest=target.policy_digest,
            namespace=self._namespace,
            queue=self._settings.queue,
            deployment=deployment,
        )

    def _apply(self, path: str, fields: K8sObject, purpose: str) -> None:
        with serving_errors():
            self._api.send(apply(path, fields, manager=FIELD_MANAGER, purpose=purpose))

    def _canary_track(
        self, stable: K8sObject, canary: K8sObject, service: K8sObject
    ) -> CanaryTrack:
        replicas = canary["spec"].get("replicas", 1)
        weight = _weight(canary)
        if weight is not None and replicas != canary_replicas(weight, self._replicas):
            weight = None  # the stable track was scaled, or the canary was by hand
        selector = service["spec"].get("selector") or {}
        route = next((one for one in Route if one.selector == selector), None)
        seen = rollout_progress(canary)
        return CanaryTrack(
            asked=asked_version(canary, self._model),
            progress=seen.progress,
            reason=seen.reason,
            has_pods=replicas > 0,
            has_traffic=route in (Route.BOTH, Route.CANARY),
            weight=weight,
            share=_share(route, _available(stable), _available(canary)),
            is_routed=weight is not None and route is Route.of_weight(weight),
        )


def _weight(canary: K8sObject) -> float | None:
    annotations = canary["metadata"].get("annotations") or {}
    try:
        return float(annotations[WEIGHT_ANNOTATION])
    except (KeyError, ValueError):
        return None


def _available(deployment: K8sObject) -> int:
    return (deployment.get("status") or {}).get("availableReplicas", 0)


def _share(route: Route | None, stable: int, canary: int) -> float:
    """The canary's share; a selector of somebody else's leads, as far as we know, not to it."""
    if route is Route.CANARY:
        return 1.0
    return canary / (stable + canary) if route is Route.BOTH and canary else 0.0

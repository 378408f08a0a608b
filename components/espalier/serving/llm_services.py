"""Two LLMInferenceServices of KServe in one routing group: read, roll, weigh, annotate.

The gateway shares requests by weight, so every share is exact in the mean; between the two patches
of a change it is off for a moment, and never leaves nobody to answer. Rolling updates, readiness
and draining are KServe's. How far a roll-out is, is read from the Deployment that KServe makes of a
member: KServe itself says Ready as soon as enough pods can answer, those of the former version too.
"""

from __future__ import annotations

from typing import NamedTuple

from espalier.cluster.kubernetes_api import (
    KubernetesApi,
    apply,
    merge,
    object_path,
)
from espalier.cluster.objects.llm_services import (
    API_VERSION,
    CANARY,
    KIND,
    PLURAL,
    SCALE,
    STABLE,
    STOP_ANNOTATION,
    LlmModel,
    llm_inference_service,
    started,
    stopped,
    weighted,
    weights,
    workload_deployment,
    workload_service,
)
from espalier.cluster.objects.names import MODEL_VERSION_ANNOTATION, K8sObject
from espalier.cluster.objects.serving import FIELD_MANAGER, WEIGHT_ANNOTATION
from espalier.config import LlmInferenceServiceConfig
from espalier.records import ServingError
from espalier.serving.asking import Address
from espalier.serving.decision import (
    CanaryTrack,
    Champion,
    RolloutMemory,
    RolloutProgress,
    RolloutState,
    Seen,
    rollout_progress,
)
from espalier.serving.tracks import TrackSettings, listed_faults, record_event, serving_errors

_PROXIED = "mlflow-artifacts:/"
"""How MLflow lists files that it keeps in a place of its own."""


class LlmInferenceServices:
    """Both members of the routing group in one namespace; see `ServingTracks`."""

    def __init__(
        self, api: KubernetesApi, settings: TrackSettings, config: LlmInferenceServiceConfig
    ) -> None:
        """Serve versions whose files lie where `config` says."""
        self._api = api
        self._settings = settings
        self._config = config
        self._namespace = settings.namespace
        self._model = settings.model
        self._paths = {
            name: object_path(API_VERSION, PLURAL, settings.namespace, name)
            for name in (STABLE, CANARY)
        }
        self._weights = {STABLE: SCALE, CANARY: 0}

    def read(self) -> RolloutState:
        """See `ServingTracks.read`; `roll` and `weigh` make members that are not there yet."""
        stable, canary = self._member(STABLE), self._member(CANARY)
        self._weights = {STABLE: stable.weight, CANARY: canary.weight}
        metadata = stable.found["metadata"]
        return RolloutState(
            uid=metadata.get("uid", ""),
            resource_version=metadata.get("resourceVersion", ""),
            asked=self._asked(stable.found),
            progress=stable.seen.progress,
            reason=stable.seen.reason,
            memory=RolloutMemory.read(_annotations(stable.found)),
            canary=self._canary_track(stable, canary),
            can_answer=stable.seen.can_answer,
        )

    def roll(self, target: Champion) -> None:
        """See `ServingTracks.roll`; a stable track that was stopped is started."""
        self._apply(STABLE, target)
        self._merge(STABLE, {"metadata": {"annotations": {STOP_ANNOTATION: None}}}, "start")

    def weigh(self, target: Champion, weight: float, state: RolloutState) -> None:
        """See `ServingTracks.weigh`; its pods come with the first share, of 0."""
        canary = state.canary
        if canary.asked != target.version or not canary.has_pods:
            self._apply(CANARY, target)
            self._merge(CANARY, {**started(weight), **weighted(0)}, "start")
            return
        stable_weight, canary_weight = weights(weight)
        self._merge(CANARY, weighted(canary_weight, weight), "weigh")
        self._merge(STABLE, weighted(stable_weight), "weigh")

    def retreat(self) -> None:
        """See `ServingTracks.retreat`."""
        stable_weight, canary_weight = weights(0.0)
        self._merge(STABLE, weighted(stable_weight), "weigh")
        self._merge(CANARY, weighted(canary_weight, 0.0), "weigh")

    def end_canary(self) -> None:
        """See `ServingTracks.end_canary`."""
        self._merge(CANARY, stopped(), "stop")

    def address(self, version: str, *, of_canary: bool) -> Address:
        """See `ServingTracks.address`; every version has the model's name, as a group demands."""
        service = workload_service(CANARY if of_canary else STABLE)
        scheme = "https" if self._config.tls else "http"
        default = f"{scheme}://{service}.{self._namespace}.svc:8000"
        return Address(self._settings.url(of_canary=of_canary, default=default), self._model)

    def remember(self, memory: RolloutMemory, state: RolloutState) -> None:
        """See `ServingTracks.remember`."""
        metadata = {"annotations": memory.annotations, "resourceVersion": state.resource_version}
        self._merge(STABLE, {"metadata": metadata}, "annotate")

    def faults(self, version: str) -> str:
        """See `ServingTracks.faults`; KServe names its pods' members in a label."""
        selector = f"app.kubernetes.io/name in ({STABLE},{CANARY})"
        return listed_faults(self._api, self._namespace, selector, version)

    def record(self, reason: str, note: str, state: RolloutState, *, warns: bool) -> None:
        """See `ServingTracks.record`."""
        about = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": STABLE,
            "namespace": self._namespace,
            "uid": state.uid,
        }
        record_event(self._api, reason, note, about, warns=warns)

    def _apply(self, name: str, target: Champion) -> None:
        fields = llm_inference_service(
            name,
            LlmModel(
                self._model,
                target.version,
                s3_address(target.location, self._config.artifacts),
                target.policy_digest,
            ),
            namespace=self._namespace,
            weight=self._weights[name],
            queue=self._settings.queue,
        )
        purpose = f"roll the {KIND} {name}"
        with serving_errors():
            self._api.send(apply(self._paths[name], fields, manager=FIELD_MANAGER, purpose=purpose))

    def _merge(self, name: str, fields: K8sObject, verb: str) -> None:
        purpose = f"{verb} the {KIND} {name}"
        with serving_errors():
            self._api.send(merge(self._paths[name], fields, purpose, fieldManager=FIELD_MANAGER))

    def _member(self, name: str) -> _Member:
        workload = object_path("apps/v1", "deployments", self._namespace, workload_deployment(name))
        with serving_errors():
            found = self._api.find(self._paths[name], f"read the {KIND} {name}")
            if found is None:
                absent: K8sObject = {"metadata": {}, "spec": {}}
                seen = Seen(RolloutProgress.ROLLING)
                return _Member(absent, seen, SCALE if name == STABLE else 0, has_pods=False)
            made = self._api.find(workload, f"read the Deployment of {name}")
        route = (found["spec"].get("router") or {}).get("route") or {}
        is_stopped = _annotations(found).get(STOP_ANNOTATION, "").lower() == "true"
        return _Member(
            found, member_progress(found, made), route.get("weight", 0), has_pods=not is_stopped
        )

    def _asked(self, member: K8sObject) -> str | None:
        """The version asked for; None where the model was changed by somebody else since."""
        is_ours = (member["spec"].get("model") or {}).get("name") == self._model
        return _annotations(member).get(MODEL_VERSION_ANNOTATION) if is_ours else None

    def _canary_track(self, stable: _Member, canary: _Member) -> CanaryTrack:
        weight, total = _asked_weight(canary.found), stable.weight + canary.weight
        has_traffic = canary.has_pods and canary.weight > 0
        return CanaryTrack(
            asked=self._asked(canary.found),
            progress=canary.seen.progress,
            reason=canary.seen.reason,
            has_pods=canary.has_pods,
            has_traffic=has_traffic,
            weight=weight,
            share=canary.weight / total if has_traffic else 0.0,
            is_routed=weight is not None and (stable.weight, canary.weight) == weights(weight),
        )


class _Member(NamedTuple):
    """A member of the group at one moment."""

    found: K8sObject
    seen: Seen
    weight: int
    has_pods: bool


def s3_address(location: str, artifacts: str) -> str:
    """Where a version's files lie in S3.

    Args:
        location: as MLflow lists them: s3://..., or mlflow-artifacts:/... where its server keeps
            them.
        artifacts: what its server calls mlflow-artifacts:/ (`kubernetes.llmisvc.artifacts`).

    Raises:
        ServingError: they are not in S3.
    """
    if location.startswith("s3://"):
        return location
    if not location.startswith(_PROXIED):
        raise ServingError(
            f"{location or 'a version without files'}: KServe fetches a version from S3 alone; let "
            'MLflow keep its artifacts there, or set kubernetes.serving = "deployment"'
        )
    path = location.removeprefix(_PROXIED)
    if path.startswith("/"):  # mlflow-artifacts://HOST:PORT/path
        path = path.lstrip("/").partition("/")[2]
    return f"{artifacts.rstrip('/')}/{path}"


def _annotations(member: K8sObject) -> dict[str, str]:
    return member["metadata"].get("annotations") or {}


def _asked_weight(canary: K8sObject) -> float | None:
    try:
        return float(_annotations(canary)[WEIGHT_ANNOTATION])
    except (KeyError, ValueError):
        return None


def member_progress(member: K8sObject, workload: K8sObject | None) -> Seen:
    """How far a member's roll-out is.

    Args:
        member: of the group.
        workload: the Deployment that KServe makes of it; None where there is none yet.
    """
    status = member.get("status") or {}
    if status.get("observedGeneration", 0) < member["metadata"].get("generation", 0):
        return Seen(RolloutProgress.ROLLING)
    if workload is None or _pod_version(workload) != _annotations(member).get(
        MODEL_VERSION_ANNOTATION
    ):
        return Seen(RolloutProgress.ROLLING)
    seen = rollout_progress(workload)
    conditions = {one["type"]: one.get("status") for one in status.get("conditions") or []}
    if seen.progress is RolloutProgress.READY and conditions.get("Ready") != "True":
        return Seen(RolloutProgress.ROLLING)  # its route is not there yet
    return seen


def _pod_version(workload: K8sObject) -> str | None:
    annotations = workload["spec"]["template"]["metadata"].get("annotations") or {}
    return annotations.get(MODEL_VERSION_ANNOTATION)

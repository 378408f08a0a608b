"""The LLMInferenceService of KServe that serves.

Rolling updates, readiness and draining are KServe's. How far a roll-out is, is read from the
Deployment that KServe makes of the service: KServe itself says Ready as soon as enough pods can
answer, those of the former version too.
"""

from __future__ import annotations

from espalier.cluster.kubernetes_api import KubernetesApi, object_path
from espalier.cluster.objects.llm_services import (
    API_VERSION,
    KIND,
    NAME,
    PLURAL,
    WORKLOAD_DEPLOYMENT,
    WORKLOAD_SERVICE,
    LlmModel,
    llm_inference_service,
)
from espalier.cluster.objects.names import MODEL_VERSION_ANNOTATION, K8sObject
from espalier.config import LlmInferenceServiceConfig
from espalier.records import ServingError
from espalier.serving.decision import (
    Champion,
    RolloutMemory,
    RolloutProgress,
    RolloutReading,
    RolloutState,
    rollout_progress,
)
from espalier.serving.workload import Address, Workload, WorkloadSettings, serving_errors

_PROXIED = "mlflow-artifacts:/"
"""How MLflow lists files that it keeps in a place of its own."""


class ServingLlmService(Workload):
    """The serving LLMInferenceService of one namespace; its pods have its name as their label."""

    api_version, kind, plural, name = API_VERSION, KIND, PLURAL, NAME

    def __init__(
        self, api: KubernetesApi, settings: WorkloadSettings, config: LlmInferenceServiceConfig
    ) -> None:
        """Serve versions whose files lie where `config` says."""
        super().__init__(api, settings)
        self._config = config

    def read(self) -> RolloutState:
        """Read it; `roll` makes one that is not there yet."""
        pods = object_path("apps/v1", "deployments", self._namespace, WORKLOAD_DEPLOYMENT)
        with serving_errors():
            found = self._api.find(self._path, f"read the {KIND} {NAME}")
            made = self._api.find(pods, f"read the Deployment {WORKLOAD_DEPLOYMENT}")
        found = found or {"metadata": {}, "spec": {}}
        seen = service_progress(found, made)
        return RolloutState(
            uid=found["metadata"].get("uid", ""),
            resource_version=found["metadata"].get("resourceVersion", ""),
            asked=self._asked(found),
            progress=seen.progress,
            reason=seen.reason,
            memory=RolloutMemory.read(_annotations(found)),
        )

    def address(self, version: str) -> Address:
        """Where a version is asked; every version has the model's name."""
        scheme = "https" if self._config.tls else "http"
        default = f"{scheme}://{WORKLOAD_SERVICE}.{self._namespace}.svc:8000"
        return Address(self._settings.url or default, self._settings.model)

    def _fields(self, target: Champion) -> K8sObject:
        model = LlmModel(
            self._settings.model,
            target.version,
            s3_address(target.location, self._config.artifacts),
            target.policy_digest,
        )
        return llm_inference_service(model, namespace=self._namespace, queue=self._settings.queue)

    def _asked(self, service: K8sObject) -> str | None:
        """The version asked for; None where the model was changed by somebody else since."""
        is_ours = (service["spec"].get("model") or {}).get("name") == self._settings.model
        return _annotations(service).get(MODEL_VERSION_ANNOTATION) if is_ours else None


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


def _annotations(service: K8sObject) -> dict[str, str]:
    return service["metadata"].get("annotations") or {}


def service_progress(service: K8sObject, workload: K8sObject | None) -> RolloutReading:
    """How far a service's roll-out is.

    Args:
        service: an LLMInferenceService.
        workload: the Deployment that KServe makes of it; None where there is none yet.
    """
    status = service.get("status") or {}
    if status.get("observedGeneration", 0) < service["metadata"].get("generation", 0):
        return RolloutReading(RolloutProgress.ROLLING)
    if workload is None or _pod_version(workload) != _annotations(service).get(
        MODEL_VERSION_ANNOTATION
    ):
        return RolloutReading(RolloutProgress.ROLLING)
    seen = rollout_progress(workload)
    conditions = {one["type"]: one.get("status") for one in status.get("conditions") or []}
    if seen.progress is RolloutProgress.READY and conditions.get("Ready") != "True":
        return RolloutReading(RolloutProgress.ROLLING)  # its route is not there yet
    return seen


def _pod_version(workload: K8sObject) -> str | None:
    annotations = workload["spec"]["template"]["metadata"].get("annotations") or {}
    return annotations.get(MODEL_VERSION_ANNOTATION)

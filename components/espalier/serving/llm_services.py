"""KServe's LLMInferenceService as a workload of the controller.

KServe does rolling updates, readiness and draining. The progress of a roll-out is read from the
Deployment that KServe creates for the service: the service itself is Ready as soon as enough pods
can answer, including those of the former version.
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
"""Scheme of files that MLflow's server stores in its own artifact store."""


class ServingLlmService(Workload):
    """The serving LLMInferenceService of one namespace; its pods have its name as their label."""

    api_version, kind, plural, name = API_VERSION, KIND, PLURAL, NAME

    def __init__(
        self, api: KubernetesApi, settings: WorkloadSettings, config: LlmInferenceServiceConfig
    ) -> None:
        """Serve versions whose files lie in `config.artifacts`."""
        super().__init__(api, settings)
        self._config = config

    def read(self) -> RolloutState:
        """Return the state of the KServe object; without fields until `roll` has created it."""
        pods = object_path("apps/v1", "deployments", self._namespace, WORKLOAD_DEPLOYMENT)
        with serving_errors():
            found = self._api.find(self._path, f"read the {KIND} {NAME}")
            made = self._api.find(pods, f"read the Deployment {WORKLOAD_DEPLOYMENT}")
        found = found or {"metadata": {}, "spec": {}}
        reading = service_progress(found, made)
        return RolloutState(
            uid=found["metadata"].get("uid", ""),
            resource_version=found["metadata"].get("resourceVersion", ""),
            asked=self._asked(found),
            progress=reading.progress,
            reason=reading.reason,
            memory=RolloutMemory.read(_annotations(found)),
        )

    def address(self, version: str) -> Address:
        """URL of the service, and the model's name, which all versions answer to."""
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
        """The wanted version; None where somebody else has changed the model's name."""
        is_ours = (service["spec"].get("model") or {}).get("name") == self._settings.model
        return _annotations(service).get(MODEL_VERSION_ANNOTATION) if is_ours else None


def s3_address(location: str, artifacts: str) -> str:
    """The S3 URI of a version's files.

    Args:
        location: URI from MLflow: s3://..., or mlflow-artifacts:/... where its server stores them.
        artifacts: S3 URI behind mlflow-artifacts:/ (`kubernetes.llmisvc.artifacts`).

    Raises:
        ServingError: they are not in S3.
    """
    if location.startswith("s3://"):
        return location
    if not location.startswith(_PROXIED):
        raise ServingError(
            f"{location or 'a version without files'}: KServe can fetch versions only from S3; let "
            'MLflow store its artifacts there, or set kubernetes.serving = "deployment"'
        )
    path = location.removeprefix(_PROXIED)
    if path.startswith("/"):  # mlflow-artifacts://HOST:PORT/path
        path = path.lstrip("/").partition("/")[2]
    return f"{artifacts.rstrip('/')}/{path}"


def _annotations(service: K8sObject) -> dict[str, str]:
    return service["metadata"].get("annotations") or {}


def service_progress(service: K8sObject, workload: K8sObject | None) -> RolloutReading:
    """Progress of a service's roll-out.

    Args:
        service: an LLMInferenceService.
        workload: the Deployment that KServe creates for it; None where it does not exist yet.
    """
    status = service.get("status") or {}
    if status.get("observedGeneration", 0) < service["metadata"].get("generation", 0):
        return RolloutReading(RolloutProgress.ROLLING)
    if workload is None:
        return RolloutReading(RolloutProgress.ROLLING)
    of_pods = workload["spec"]["template"]["metadata"].get("annotations") or {}
    wanted = _annotations(service).get(MODEL_VERSION_ANNOTATION)
    if of_pods.get(MODEL_VERSION_ANNOTATION) != wanted:
        return RolloutReading(RolloutProgress.ROLLING)
    reading = rollout_progress(workload)
    conditions = {one["type"]: one.get("status") for one in status.get("conditions") or []}
    if reading.progress is RolloutProgress.READY and conditions.get("Ready") != "True":
        return RolloutReading(RolloutProgress.ROLLING)  # its route does not exist yet
    return reading

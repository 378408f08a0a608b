"""The stand-in of the API server with KServe: an LLMInferenceService and its Deployment.

It plays what KServe 0.20.0 does with it: a Deployment, and Ready as soon as enough pods of any
version can answer.
"""

from copy import deepcopy

import jsonschema
from kubernetes.client import Configuration

from espalier.cluster.kubernetes_api import KubernetesApi
from espalier.cluster.objects.llm_services import API_VERSION, KIND, NAME, PLURAL
from espalier.config import LlmInferenceServiceConfig
from espalier.serving.llm_services import ServingLlmService
from espalier.serving.workload import RETRIES, WorkloadSettings
from tests.fakes.serving_cluster import TOKEN, StandInCluster
from tests.unit.k8s.allowed_verbs import KSERVE_VERBS, PIPELINE
from tests.unit.k8s.custom_resources import whole

_SERVICE = f"/apis/{API_VERSION}/namespaces/{PIPELINE}/{PLURAL}/{NAME}"
_DEPLOYMENT = f"/apis/apps/v1/namespaces/{PIPELINE}/deployments/{NAME}-kserve"
_VERSION = "espalier.dev/model-version"


class StandInKserve(StandInCluster):
    """What the API server keeps; the service is made by the first apply."""

    allowed = KSERVE_VERBS["espalier-serving-controller"]
    makeable = (_SERVICE,)

    def __init__(self):
        super().__init__()
        self.service = None

    @property
    def objects(self):
        if self.service is None:
            return {}
        return {_SERVICE: self.service, _DEPLOYMENT: self._workload()}

    @property
    def annotations(self):
        return self.service["metadata"]["annotations"]

    @property
    def serving(self):
        return self.annotations.get(_VERSION)

    def read(self, path):
        found = deepcopy(self.objects[path])
        if found["kind"] == KIND:
            conditions = [{"type": "Ready", "status": "True"}]
            generation = found["metadata"]["generation"]
            found["status"] = {"observedGeneration": generation, "conditions": conditions}
        return found

    def apply(self, path, fields):
        jsonschema.validate(fields, whole(fields))
        metadata = {"uid": NAME, "generation": 0, "resourceVersion": "0", "annotations": {}}
        empty = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {}}
        self.service = self.service or empty
        _merge(self.service, fields)
        self._changed(self.service)

    def answer(self, model):
        """Every version has the model's name."""
        return self.answers.get(self.serving, 200), {"usage": {"completion_tokens": 1}}

    def _changed(self, found):
        super()._changed(found)
        found["metadata"]["generation"] += 1

    def _workload(self):
        annotations = deepcopy(self.service["spec"]["annotations"])
        deployment = {
            "kind": "Deployment",
            "metadata": {"generation": 1},
            "spec": {
                "replicas": 2,
                "template": {"metadata": {"annotations": annotations}, "spec": {"containers": []}},
            },
        }
        self._play(deployment)
        return deployment


def connected(url, model):
    """The controller's side of it."""
    settings = Configuration(host=url)
    settings.api_key = {"authorization": f"Bearer {TOKEN}"}
    workload = WorkloadSettings(namespace=PIPELINE, model=model, queue="espalier", url=url)
    api = KubernetesApi(settings, RETRIES)
    return ServingLlmService(api, workload, LlmInferenceServiceConfig())


def _merge(into, given):
    for key, value in given.items():
        if isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value

"""The stand-in of the API server with KServe: two LLMInferenceServices and their Deployments.

It plays what KServe 0.20.0 does with them: a Deployment for each, a weight for each in the group,
nothing where a member is stopped, and Ready as soon as enough pods of any version can answer.
"""

from copy import deepcopy

import jsonschema
from kubernetes.client import Configuration

from espalier.cluster.kubernetes_api import KubernetesApi
from espalier.cluster.objects.llm_services import API_VERSION, CANARY, KIND, PLURAL, STABLE
from espalier.config import LlmInferenceServiceConfig
from espalier.serving.llm_services import LlmInferenceServices
from espalier.serving.tracks import RETRIES, TrackSettings
from tests.fakes.serving_cluster import TOKEN, StandInCluster
from tests.unit.k8s.allowed_verbs import KSERVE_VERBS, PIPELINE
from tests.unit.k8s.custom_resources import whole

_MEMBERS = f"/apis/{API_VERSION}/namespaces/{PIPELINE}/{PLURAL}"
_DEPLOYMENTS = f"/apis/apps/v1/namespaces/{PIPELINE}/deployments"
_VERSION = "espalier.dev/model-version"


class StandInKserve(StandInCluster):
    """What the API server keeps; members are made by the first apply."""

    allowed = KSERVE_VERBS["espalier-serving-controller"]
    makeable = (f"{_MEMBERS}/{STABLE}", f"{_MEMBERS}/{CANARY}")
    tracks = (STABLE, CANARY)

    def __init__(self):
        super().__init__()
        self.members = {}
        self.shares = []
        """Every share that the canary had, once for each change."""

    @property
    def objects(self):
        made = {f"{_MEMBERS}/{name}": member for name, member in self.members.items()}
        deployments = {
            f"{_DEPLOYMENTS}/{name}-kserve": self._workload(member)
            for name, member in self.members.items()
            if not is_stopped(member)
        }
        return made | deployments

    @property
    def annotations(self):
        return self.members[STABLE]["metadata"]["annotations"]

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
        name = path.rpartition("/")[2]
        metadata = {"uid": name, "generation": 0, "resourceVersion": "0", "annotations": {}}
        empty = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {}}
        _merge(self.members.setdefault(name, empty), fields)
        self._changed(self.members[name])

    def merge(self, path, patch):
        found = self.objects[path]
        expected = patch.get("metadata", {}).get("resourceVersion")
        if expected not in (None, found["metadata"]["resourceVersion"]):
            return False
        _merge(found, {key: value for key, value in patch.items() if key == "spec"})
        for key, value in patch.get("metadata", {}).get("annotations", {}).items():
            if value is None:
                found["metadata"]["annotations"].pop(key, None)
            else:
                found["metadata"]["annotations"][key] = value
        self._changed(found)
        return True

    def pods(self):
        return [self._pod(member["metadata"]["annotations"][_VERSION])
                for member in self.members.values()]  # fmt: skip

    def answer(self, track, version):
        """Every version has the model's name: the pods of the track are who is asked."""
        member = self.members[STABLE if track == "stable" else CANARY]
        served = member["metadata"]["annotations"][_VERSION]
        choice = {"text": self.says.get(served, "yes"), "finish_reason": "stop"}
        status = 503 if is_stopped(member) else self.answers.get(served, 200)
        return status, {"usage": {"completion_tokens": 1}, "choices": [choice]}

    def weight(self, name):
        return self.members[name]["spec"]["router"]["route"]["weight"]

    def _changed(self, found):
        super()._changed(found)
        found["metadata"]["generation"] += 1
        if self.members.keys() >= {STABLE, CANARY}:
            total = self.weight(STABLE) + self.weight(CANARY)
            assert total, "nobody would answer"
            stopped = is_stopped(self.members[CANARY])
            share = 0.0 if stopped else self.weight(CANARY) / total
            if self.shares[-1:] != [share]:
                self.shares.append(share)

    def _workload(self, member):
        annotations = deepcopy(member["spec"]["annotations"])
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


def is_stopped(member):
    return member["metadata"]["annotations"].get("serving.kserve.io/stop") == "true"


def connected(url, model):
    """The controller's side of it."""
    settings = Configuration(host=url)
    settings.api_key = {"authorization": f"Bearer {TOKEN}"}
    tracks = TrackSettings(
        namespace=PIPELINE, model=model, queue="espalier", stable_url=f"{url}/stable",
        canary_url=f"{url}/canary",
    )  # fmt: skip
    config = LlmInferenceServiceConfig()
    return LlmInferenceServices(KubernetesApi(settings, RETRIES), tracks, config)


def _merge(into, given):
    for key, value in given.items():
        if isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value

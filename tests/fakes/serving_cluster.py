"""A small API server over HTTP: a Deployment, its roll-outs, events, pods and answers.

It holds requests to what the controller's account may do, applies fields as a server-side apply
does, and plays the roll-out of a version as a test says: "ready", "stuck" or "rolling".
"""

import json
import re
from contextlib import contextmanager
from copy import deepcopy
from urllib.parse import parse_qs, urlsplit

from kubernetes.client import Configuration

from espalier.cluster.kubernetes_api import KubernetesApi
from espalier.cluster.objects.serving import DEPLOYMENT, FIELD_MANAGER
from espalier.serving.deployment import ServingDeployment
from espalier.serving.workload import RETRIES, WorkloadSettings
from tests.fakes.loopback import Handler, Server, serving
from tests.unit.k8s.allowed_verbs import ALLOWED_VERBS, PIPELINE

TOKEN = "the-controller"
_DEPLOYMENTS = f"/apis/apps/v1/namespaces/{PIPELINE}/deployments"
_VERSION = "espalier.dev/model-version"


class StandInCluster:
    """What the API server keeps."""

    allowed = ALLOWED_VERBS["espalier-serving-controller"]
    makeable = ()
    """Paths of objects that are made when they are first applied."""

    def __init__(self):
        self.plays = {}
        """Version -> how its roll-out goes; "ready" where nothing is said."""
        self.answers = {}
        """Version -> HTTP status of the service; 200 where nothing is said."""
        self.faults = []
        """HTTP statuses that the next requests are answered with."""
        self.events = []
        self.requests = []
        self.deployment = _deployment({"somebody/else": "kept"})
        self.rolls = 0

    @property
    def objects(self):
        """Path -> object."""
        return {f"{_DEPLOYMENTS}/{DEPLOYMENT}": self.deployment}

    @property
    def serving(self):
        """Version of the pod template."""
        return version_of(self.deployment)

    @property
    def annotations(self):
        return self.deployment["metadata"]["annotations"]

    @property
    def environment(self):
        (container, _) = self.deployment["spec"]["template"]["spec"]["containers"]
        return {entry["name"]: entry.get("value") for entry in container["env"]}

    def read(self, path):
        found = self.objects[path]
        self._play(found)
        return deepcopy(found)

    def apply(self, path, fields):
        """Own what is given; lists of named things are merged by name."""
        found = self.objects[path]
        before = deepcopy(found["spec"])
        _merge(found["spec"], fields["spec"])
        if found["spec"] != before:
            found["metadata"]["generation"] += 1
            self.rolls += 1
        self._changed(found)

    def merge(self, path, patch):
        found = self.objects[path]
        expected = patch["metadata"].get("resourceVersion")
        if expected not in (None, found["metadata"]["resourceVersion"]):
            return False
        for name, value in patch["metadata"]["annotations"].items():
            if value is None:
                found["metadata"]["annotations"].pop(name, None)
            else:
                found["metadata"]["annotations"][name] = value
        self._changed(found)
        return True

    def pods(self):
        """A pod of the version; it says why it does not start where that is played."""
        return [self._pod(self.serving)]

    def answer(self, model):
        """HTTP status and body of the pods that are asked for a model by its name."""
        version = model.rpartition("/")[2]
        status = self.answers.get(version, 200 if self.serving == version else 404)
        return status, {"usage": {"completion_tokens": 1}}

    def _pod(self, version):
        state = {"running": {}}
        if self.plays.get(version) == "stuck":
            ended = {"exitCode": 1, "message": "error: model.safetensors has other bytes\n"}
            state = {"waiting": {"reason": "CrashLoopBackOff"}}
        else:
            ended = None
        status = {"name": "serving", "state": state, "lastState": {"terminated": ended}}
        return {
            "metadata": {"name": "p", "annotations": {_VERSION: version}},
            "status": {"containerStatuses": [status]},
        }

    def _changed(self, found):
        metadata = found["metadata"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)

    def _play(self, found):
        play, wanted = self.plays.get(version_of(found), "ready"), found["spec"]["replicas"]
        updated = wanted if play == "ready" else 1
        found["status"] = {
            "observedGeneration": found["metadata"]["generation"] - (play == "unseen"),
            "replicas": wanted if play == "ready" else wanted + 1,
            "updatedReplicas": updated,
            "availableReplicas": wanted,
            "conditions": [
                {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
                {
                    "type": "Progressing",
                    "status": "False" if play == "stuck" else "True",
                    "reason": "ProgressDeadlineExceeded"
                    if play == "stuck"
                    else "ReplicaSetUpdated",
                    "message": "ReplicaSet has timed out progressing.",
                },
            ],
        }


def version_of(deployment):
    return deployment["spec"]["template"]["metadata"].get("annotations", {}).get(_VERSION)


def _deployment(annotations):
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": DEPLOYMENT,
            "namespace": PIPELINE,
            "uid": "0-1-2",
            "generation": 1,
            "resourceVersion": "1",
            "annotations": annotations,
        },
        "spec": {
            "replicas": 2,
            "template": {
                "metadata": {"labels": {"app.kubernetes.io/name": DEPLOYMENT}},
                "spec": {
                    "containers": [
                        {"name": "serving", "env": [{"name": "MLFLOW_TRACKING_URI"}]},
                        {"name": "beside"},
                    ]
                },
            },
        },
        "status": {},
    }


def _merge(into, given):
    for key, value in given.items():
        if isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        elif isinstance(value, list) and all("name" in item for item in value):
            named = {item["name"]: item for item in into.setdefault(key, [])}
            for item in value:
                if item["name"] in named:
                    _merge(named[item["name"]], item)
                else:
                    into[key].append(deepcopy(item))
        else:
            into[key] = value


@contextmanager
def running(cluster):
    """Serve it; yields its address."""
    server = Server(_Handler)
    server.cluster = cluster
    with serving(server):
        yield server.address


def connected(url, model, token=TOKEN):
    """The controller's side of it."""
    settings = Configuration(host=url)
    settings.api_key = {"authorization": f"Bearer {token}"}
    workload = WorkloadSettings(namespace=PIPELINE, model=model, url=url)
    return ServingDeployment(KubernetesApi(settings, RETRIES), workload)


class _Handler(Handler):
    def do_GET(self):
        self._answer("get")

    def do_PATCH(self):
        self._answer("patch")

    def do_POST(self):
        self._answer("create")

    def _answer(self, verb):
        self.given = json.loads(self.read_body() or "null")
        where = urlsplit(self.path)
        if where.path == "/v1/completions":
            return self.say(*self.server.cluster.answer(self.given["model"]))
        self.server.cluster.requests.append((verb, where.path))
        if self.server.cluster.faults:
            return self.say(self.server.cluster.faults.pop(0), {"kind": "Status"})
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            return self.say(401, {"kind": "Status"})
        if not _is_allowed(self.server.cluster.allowed, verb, where.path):
            return self.say(403, {"kind": "Status"})
        return self._do(verb, where.path, parse_qs(where.query))

    def _do(self, verb, path, query):
        if path.endswith("/pods"):
            assert query["labelSelector"] == [f"app.kubernetes.io/name={DEPLOYMENT}"]
            return self.say(200, {"items": self.server.cluster.pods()})
        if path.endswith("/events"):
            return self._record()
        is_applied = self.headers["content-type"] == "application/apply-patch+yaml"
        if path not in self.server.cluster.objects and not (
            is_applied and path in self.server.cluster.makeable
        ):
            return self.say(404, {"kind": "Status"})
        if verb == "get":
            return self.say(200, self.server.cluster.read(path))
        assert query["fieldManager"] == [FIELD_MANAGER]
        if is_applied:
            assert query["force"] == ["true"]
            self.server.cluster.apply(path, self.given)
        elif not self.server.cluster.merge(path, self.given):
            return self.say(409, {"kind": "Status", "reason": "Conflict"})
        return self.say(200, self.server.cluster.read(path))

    def _record(self):
        name = self.given["metadata"]["name"]
        assert re.fullmatch(r"[a-z0-9.-]{1,253}", name)
        assert len(self.given["message"]) <= 1024
        if any(event["metadata"]["name"] == name for event in self.server.cluster.events):
            return self.say(409, {"kind": "Status", "reason": "AlreadyExists"})
        self.server.cluster.events.append(self.given)
        return self.say(201, self.given)


def _is_allowed(allowed, verb, path):
    found = re.fullmatch(
        r"/(?:api/v1|apis/([^/]+)/v1\w*)/namespaces/([^/]+)/([^/]+)(?:/(.+))?", path
    )
    group, namespace, resource, name = found.groups()
    if name is None and verb == "get":
        verb = "list"
    named = f" NAME:{name}" if name else ""
    verbs = allowed.get((namespace, group or "", f"{resource}{named}"), "")
    return verb in verbs.split()

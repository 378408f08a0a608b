"""A small API server over HTTP: a Deployment, its roll-outs, events, pods; and its service.

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
from espalier.serving.deployment import RETRIES, ServingDeployment
from tests.fakes.loopback import Handler, Server, serving
from tests.unit.k8s.allowed_verbs import ALLOWED_VERBS, PIPELINE

TOKEN = "the-controller"
ALLOWED = ALLOWED_VERBS["espalier-serving-controller"]
_DEPLOYMENT = f"/apis/apps/v1/namespaces/{PIPELINE}/deployments/{DEPLOYMENT}"
_VERSION = "espalier.dev/model-version"


class StandInCluster:
    """What the API server keeps."""

    def __init__(self, *, replicas=2):
        self.plays = {}
        """Version -> how its roll-out goes; "ready" where nothing is said."""
        self.answers = {}
        """Version -> HTTP status of the service; 200 where nothing is said."""
        self.faults = []
        """HTTP statuses that the next requests are answered with."""
        self.events = []
        self.requests = []
        self.deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": DEPLOYMENT,
                "namespace": PIPELINE,
                "uid": "0-1-2",
                "generation": 1,
                "resourceVersion": "1",
                "annotations": {"somebody/else": "kept"},
            },
            "spec": {
                "replicas": replicas,
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
        self.rolls = 0

    @property
    def serving(self):
        """Version of the pod template."""
        return self.deployment["spec"]["template"]["metadata"].get("annotations", {}).get(_VERSION)

    @property
    def annotations(self):
        return self.deployment["metadata"]["annotations"]

    @property
    def environment(self):
        (container, _) = self.deployment["spec"]["template"]["spec"]["containers"]
        return {entry["name"]: entry.get("value") for entry in container["env"]}

    def read(self):
        self._play()
        return deepcopy(self.deployment)

    def apply(self, fields):
        """Own what is given; lists of named things are merged by name."""
        before = deepcopy(self.deployment["spec"])
        _merge(self.deployment["spec"], fields["spec"])
        if self.deployment["spec"] != before:
            self.deployment["metadata"]["generation"] += 1
            self.rolls += 1
        self._changed()

    def annotate(self, patch):
        expected = patch["metadata"].get("resourceVersion")
        if expected not in (None, self.deployment["metadata"]["resourceVersion"]):
            return False
        for name, value in patch["metadata"]["annotations"].items():
            if value is None:
                self.annotations.pop(name, None)
            else:
                self.annotations[name] = value
        self._changed()
        return True

    def pods(self):
        """One pod of the version asked for; it says why it does not start where that is played."""
        state = {"running": {}}
        if self.plays.get(self.serving) == "stuck":
            ended = {"exitCode": 1, "message": "error: model.safetensors has other bytes\n"}
            state = {"waiting": {"reason": "CrashLoopBackOff"}}
        else:
            ended = None
        status = {"name": "serving", "state": state, "lastState": {"terminated": ended}}
        return [
            {
                "metadata": {"name": "p", "annotations": {_VERSION: self.serving}},
                "status": {"containerStatuses": [status]},
            }
        ]

    def _changed(self):
        metadata = self.deployment["metadata"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)

    def _play(self):
        play, wanted = self.plays.get(self.serving, "ready"), self.deployment["spec"]["replicas"]
        updated = wanted if play == "ready" else 1
        self.deployment["status"] = {
            "observedGeneration": self.deployment["metadata"]["generation"] - (play == "unseen"),
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


def connected(url, token=TOKEN):
    """The controller's side of it."""
    settings = Configuration(host=url)
    settings.api_key = {"authorization": f"Bearer {token}"}
    return ServingDeployment(KubernetesApi(settings, RETRIES), PIPELINE)


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
            return self._complete()
        self.server.cluster.requests.append((verb, where.path))
        if self.server.cluster.faults:
            return self.say(self.server.cluster.faults.pop(0), {"kind": "Status"})
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            return self.say(401, {"kind": "Status"})
        if not _is_allowed(verb, where.path):
            return self.say(403, {"kind": "Status"})
        return self._do(verb, where.path, parse_qs(where.query))

    def _do(self, verb, path, query):
        if path.endswith("/pods"):
            assert query["labelSelector"] == [f"app.kubernetes.io/name={DEPLOYMENT}"]
            return self.say(200, {"items": self.server.cluster.pods()})
        if path.endswith("/events"):
            return self._record()
        if path != _DEPLOYMENT:
            return self.say(404, {"kind": "Status"})
        if verb == "get":
            return self.say(200, self.server.cluster.read())
        assert query["fieldManager"] == [FIELD_MANAGER]
        if self.headers["content-type"] == "application/apply-patch+yaml":
            assert query["force"] == ["true"]
            self.server.cluster.apply(self.given)
        elif not self.server.cluster.annotate(self.given):
            return self.say(409, {"kind": "Status", "reason": "Conflict"})
        return self.say(200, self.server.cluster.read())

    def _record(self):
        name = self.given["metadata"]["name"]
        assert re.fullmatch(r"[a-z0-9.-]{1,253}", name)
        assert len(self.given["message"]) <= 1024
        if any(event["metadata"]["name"] == name for event in self.server.cluster.events):
            return self.say(409, {"kind": "Status", "reason": "AlreadyExists"})
        self.server.cluster.events.append(self.given)
        return self.say(201, self.given)

    def _complete(self):
        version = self.given["model"].rpartition("/")[2]
        status = self.server.cluster.answers.get(
            version, 200 if version == self.server.cluster.serving else 404
        )
        self.say(status, {"usage": {"completion_tokens": 1}})


def _is_allowed(verb, path):
    found = re.fullmatch(r"/(?:api/v1|apis/([^/]+)/v1)/namespaces/([^/]+)/([^/]+)(?:/(.+))?", path)
    group, namespace, resource, name = found.groups()
    if name is None and verb == "get":
        verb = "list"
    named = f" NAME:{name}" if name else ""
    verbs = ALLOWED.get((namespace, group or "", f"{resource}{named}"), "")
    return verb in verbs.split()

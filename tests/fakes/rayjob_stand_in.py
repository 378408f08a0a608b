"""The part of an API server that keeps RayJobs, on loopback; what KubeRay would say is scripted.

Pods and Workflows, which are only read, are put into `others` by their paths.
"""

import json
import re
from contextlib import contextmanager, suppress

from tests.fakes.loopback import Handler, Server, serving

PATH = re.compile(r"/apis/ray\.io/v1/namespaces/([\w-]+)/rayjobs(?:/([\w-]+))?(?:\?.*)?")


def state(deployment, job="", message=""):
    return {"jobDeploymentStatus": deployment, "jobStatus": job, "message": message}


class RayJobStandIn:
    def __init__(self, folder):
        self.jobs = {}  # name -> manifest
        self.others = {}  # path -> object
        self.deleted = []
        self.script = []  # a status for each reading; the last one stays
        self.faults = []  # statuses that the next requests get instead
        self.requests = []
        self.server = Server(_Handler)
        self.server.stand_in = self
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))  # JSON is YAML

    def _kubeconfig(self):
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": {"server": self.server.address}}],
            "users": [{"name": "me", "user": {"token": "a-token-of-mine"}}],
            "contexts": [{"name": "it", "context": {"cluster": "here", "user": "me"}}],
            "current-context": "it",
        }

    def answer(self, method, namespace, name, body):
        if method == "POST":
            made = json.loads(body)
            name = made["metadata"]["name"]
            if made["metadata"]["namespace"] != namespace:
                return 422, {"message": "another namespace than the path's"}
            if name in self.jobs:
                return 409, {"message": f'rayjobs "{name}" already exists'}
            made["metadata"]["uid"] = f"uid-{len(self.requests)}"
            self.jobs[name] = made
            return 201, made
        if method == "GET" and name is None:
            return 200, {"items": list(self.jobs.values())}
        if name not in self.jobs:
            return 404, {"message": f'rayjobs "{name}" not found'}
        if method == "DELETE":
            self.deleted.append((name, json.loads(body)))
            return 200, self.jobs.pop(name)
        status = self.script.pop(0) if len(self.script) > 1 else (self.script or [None])[0]
        return 200, self.jobs[name] | ({"status": status} if status else {})


@contextmanager
def rayjob_stand_in(folder):
    stand_in = RayJobStandIn(folder)
    with serving(stand_in.server):
        yield stand_in


class _Handler(Handler):
    def _answer(self):
        with suppress(ConnectionError):
            stand_in = self.server.stand_in
            body = self.read_body()
            stand_in.requests.append(self.command)
            status, content = 404, {"message": f"no such path {self.path}"}
            if stand_in.faults:
                status, content = stand_in.faults.pop(0), {"message": "asked for by the test"}
                if status == "drop":
                    self.close_connection = True
                    return
            elif self.path in stand_in.others:
                status, content = 200, stand_in.others[self.path]
            elif found := PATH.fullmatch(self.path):
                status, content = stand_in.answer(self.command, *found.groups(), body)
            self.say(status, content)

    do_GET = do_POST = do_DELETE = _answer

"""The part of an API server that keeps RayJobs and TrainJobs, on loopback.

What their operators would say is scripted. Pods, Jobs and Workflows, which are only read, are put
into `others` by their paths.
"""

import json
import re
from contextlib import contextmanager, suppress

from tests.fakes.loopback import Handler, Server, serving

KINDS = {"ray.io/v1": "rayjobs", "trainer.kubeflow.org/v1alpha1": "trainjobs"}
PATH = re.compile(
    rf"/apis/({'|'.join(KINDS)})/namespaces/([\w-]+)/({'|'.join(KINDS.values())})"
    r"(?:/([\w-]+))?(?:\?.*)?"
)


def state(deployment, job="", message=""):
    """Status of a RayJob."""
    return {"jobDeploymentStatus": deployment, "jobStatus": job, "message": message}


def trained(*, active=0, progress=None, message="", **conditions):
    """Status of a TrainJob."""
    return {
        "conditions": [
            {"type": kind, "status": status, "reason": "Scripted", "message": message}
            for kind, status in conditions.items()
        ],
        "jobsStatus": [{"name": "node", "active": active}],
        **({"trainerStatus": {"progressPercentage": progress}} if progress is not None else {}),
    }


class LaunchedStandIn:
    def __init__(self, folder):
        self.objects = {}  # name -> manifest
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

    def answer(self, method, version, namespace, plural, name, body):
        if method == "POST":
            made = json.loads(body)
            name = made["metadata"]["name"]
            if made["metadata"]["namespace"] != namespace:
                return 422, {"message": "another namespace than the path's"}
            if name in self.objects:
                return 409, {"message": f'{plural} "{name}" already exists'}
            made["metadata"]["uid"] = f"uid-{len(self.requests)}"
            self.objects[name] = made
            return 201, made
        if method == "GET" and name is None:
            kept = [item for item in self.objects.values() if item["apiVersion"] == version]
            return 200, {"items": kept}
        if name not in self.objects:
            return 404, {"message": f'{plural} "{name}" not found'}
        if method == "DELETE":
            self.deleted.append((name, json.loads(body)))
            return 200, self.objects.pop(name)
        status = self.script.pop(0) if len(self.script) > 1 else (self.script or [None])[0]
        return 200, self.objects[name] | ({"status": status} if status else {})


@contextmanager
def launched_stand_in(folder):
    stand_in = LaunchedStandIn(folder)
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

"""A stand-in for a cluster, on loopback: an API server with pods and leases, plain objects all.

    python -m tests.fakes.cluster_stand_in      prints its port, and serves until its input ends

Nothing runs in its pods. Under every pod's address the stand-in itself answers, as a sandboxd whose
programs end at once with nothing said.
"""

import asyncio
import contextlib
import itertools
import json
import socket
import sys
from collections import deque
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sandboxd.wire import RunEnd, end_frame, output_frame

TOKEN = "of-the-trainer"
_AGENT_SANDBOX = "/apis/extensions.agents.x-k8s.io/v1beta1"
_CLAIMS = f"{_AGENT_SANDBOX}/namespaces/{{namespace}}/sandboxclaims"
_RUNS = {
    "Pod": {"phase": "Running", "podIP": "127.0.0.1"},
    "SandboxClaim": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "sandbox": {"name": "warm-1", "podIPs": ["127.0.0.1"]},
    },
}
_REMEMBERED = 20_000
"""Events that a watch can go on from."""
_END = RunEnd(
    exit_status=0,
    signal=None,
    killed_by=None,
    truncated=False,
    duration_s=0.0,
    cpu_s=0.0,
    max_rss_bytes=0,
)
_CORE, _LEASES = "/api/v1/namespaces/{namespace}/pods", "/apis/coordination.k8s.io/v1/namespaces"
_LEASES += "/{namespace}/leases"


async def _reset(request: Request) -> Response:
    return JSONResponse({"reset": request.query_params.get("to")})


class StandIn:
    """What the cluster holds, for tests to look at and to change.

    Attributes:
        start_s: until a created pod runs; None is never.
        refusals: status and message of the next creates of pods.
        unready: requests that a started pod's server refuses until it is ready.
        hangs: whether programs in pods never end; "broken": their connection ends without a word.
        image_id: of containers, as their nodes resolved it.
        pods: or claims, where agent-sandbox is installed.
        pods_of_claims: pods that are found by their address, by the name of their claim.
        templates: and warm pools of agent-sandbox, by kind.
    """

    def __init__(self, *, start_s=0.0, has_agent_sandbox=False):
        self.start_s = start_s
        self.has_agent_sandbox = has_agent_sandbox
        self.templates = {}
        self.refusals = deque()
        self.unready = 0
        self.hangs = False
        self.image_id = ""
        self.pods, self.leases, self.ran = {}, {}, []
        self.pods_of_claims = {}
        self._versions = itertools.count(1)
        self._version = "0"
        self._watches = set()
        self._history = deque(maxlen=_REMEMBERED)

    def app(self):
        pods = [
            route
            for folder in (_CORE, _CLAIMS)
            for route in (
                Route(folder, self.create_pod, methods=["POST"]),
                Route(folder, self.list_pods, methods=["GET"]),
                Route(f"{folder}/{{name}}", self.delete_pod, methods=["DELETE"]),
            )
        ]
        return Starlette(
            routes=[
                *pods,
                Route(f"{_AGENT_SANDBOX}/namespaces/{{n}}/{{kind}}", self.keep, methods=["POST"]),
                Route(
                    f"{_AGENT_SANDBOX}/namespaces/{{n}}/{{kind}}/{{name}}",
                    self.kept,
                    methods=["GET", "DELETE"],
                ),
                Route(_LEASES, self.create_lease, methods=["POST"]),
                Route(f"{_LEASES}/{{name}}", self.change_lease, methods=["PATCH", "DELETE"]),
                Route(_AGENT_SANDBOX, self.discover),
                Route("/healthz", self.health),
                Route("/run", self.run, methods=["POST"]),
                Route("/reset", _reset, methods=["POST"]),
                Route("/{other:path}", lambda _: JSONResponse({}), methods=["GET", "POST", "PUT"]),
            ]
        )

    async def create_pod(self, request: Request) -> Response:
        if refused := self._unauthorized(request):
            return refused
        if self.refusals:
            status, message = self.refusals.popleft()
            return JSONResponse({"message": message}, status_code=status)
        pod = await request.json()
        pod["metadata"]["uid"] = f"uid-{pod['metadata']['name']}"
        pod["status"] = {}
        name = pod["metadata"]["name"]
        self.pods[name] = pod
        self.tell("ADDED", pod)
        if _owner(pod) not in {lease["metadata"]["uid"] for lease in self.leases.values()}:
            self.remove(name)  # as Kubernetes does: its owner is gone
            return JSONResponse(pod, status_code=201)
        if self.start_s is not None:
            loop = asyncio.get_running_loop()
            runs = _RUNS[pod["kind"]] | {"containerStatuses": [{"imageID": self.image_id}]}
            if pod["kind"] == "SandboxClaim":
                self.pods_of_claims[name] = self.warm_pod()
            loop.call_later(self.start_s, self.change, name, runs)
        return JSONResponse(pod, status_code=201)

    def warm_pod(self):
        """A pod of the warm pool, as its template is now."""
        template = json.loads(json.dumps(self.templates["sandboxtemplates"]["spec"]))
        return template["podTemplate"] | {"status": _RUNS["Pod"]}

    async def list_pods(self, request: Request) -> Response:
        if refused := self._unauthorized(request):
            return refused
        if request.query_params.get("watch"):
            return StreamingResponse(self._events(request.query_params["resourceVersion"]))
        found = self.pods_of_claims if "fieldSelector" in request.query_params else self.pods
        items = list(found.values())
        return JSONResponse({"metadata": {"resourceVersion": self._version}, "items": items})

    async def delete_pod(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.pods:
            return JSONResponse({"message": "not found"}, status_code=404)
        self.remove(name)
        return JSONResponse({"status": "Success"})

    async def create_lease(self, request: Request) -> Response:
        lease = await request.json()
        name = lease["metadata"]["name"]
        if name in self.leases:
            return JSONResponse({"message": "already exists"}, status_code=409)
        lease["metadata"]["uid"] = f"uid-{len(self.leases)}-{next(self._versions)}"
        self.leases[name] = lease
        return JSONResponse(lease, status_code=201)

    async def change_lease(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.leases:
            return JSONResponse({"message": "not found"}, status_code=404)
        if request.method == "DELETE":
            self.lose_lease(name)
            return JSONResponse({"status": "Success"})
        self.leases[name]["spec"] |= (await request.json())["spec"]
        return JSONResponse(self.leases[name])

    async def discover(self, _: Request) -> Response:
        return JSONResponse({}, status_code=200 if self.has_agent_sandbox else 404)

    def lose_lease(self, name):
        """Delete a lease, and what it owns with it."""
        owner = self.leases.pop(name)["metadata"]["uid"]
        for pod in tuple(self.pods.values()):
            if _owner(pod) == owner:
                self.remove(pod["metadata"]["name"])
        self.templates = {k: item for k, item in self.templates.items() if _owner(item) != owner}

    async def keep(self, request: Request) -> Response:
        kind, item = request.path_params["kind"], await request.json()
        if kind in self.templates:
            return JSONResponse({"message": "already exists"}, status_code=409)
        item["metadata"]["uid"] = f"uid-{kind}-{next(self._versions)}"
        self.templates[kind] = item
        return JSONResponse({}, status_code=201)

    async def kept(self, request: Request) -> Response:
        kind, name = request.path_params["kind"], request.path_params["name"]
        item = self.templates.get(kind)
        if item is None or item["metadata"]["name"] != name:
            return JSONResponse({"message": "not found"}, status_code=404)
        if request.method == "DELETE":
            del self.templates[kind]
        return JSONResponse(item)

    async def health(self, _: Request) -> Response:
        self.unready = max(self.unready - 1, 0)
        return JSONResponse({"status": "ok"}, status_code=503 if self.unready else 200)

    async def run(self, request: Request) -> Response:
        self.ran.append(await request.json())
        if self.hangs == "broken":
            return Response(output_frame("stdout", b"{}"))
        if self.hangs:
            await asyncio.sleep(3600)
        return Response(output_frame("stdout", b"{}") + end_frame(_END))

    def change(self, name, status):
        """Give a pod another status, if it is still there."""
        if name in self.pods:
            self.pods[name]["status"] = status
            self.tell("MODIFIED", self.pods[name])

    def remove(self, name):
        """A pod is gone."""
        self.pods_of_claims.pop(name, None)
        self.tell("DELETED", self.pods.pop(name))

    def tell(self, kind, pod):
        """An event for all who watch."""
        self._version = pod["metadata"]["resourceVersion"] = str(next(self._versions))
        event = {"type": kind, "object": json.loads(json.dumps(pod))}
        self._history.append(event)
        for events in self._watches:
            events.put_nowait(event)

    def end_watches(self, last=None):
        """End every watch, with a last event or without."""
        for events in self._watches:
            if last is not None:
                events.put_nowait(last)
            events.put_nowait(None)

    async def _events(self, since):
        events = asyncio.Queue()
        for event in self._history:
            if int(event["object"]["metadata"]["resourceVersion"]) > int(since):
                events.put_nowait(event)
        self._watches.add(events)
        try:
            while (event := await events.get()) is not None:
                yield json.dumps(event) + "\n"
        finally:
            self._watches.discard(events)

    def _unauthorized(self, request):
        if request.headers.get("authorization") == f"Bearer {TOKEN}":
            return None
        return JSONResponse({"message": "Unauthorized"}, status_code=401)


def _owner(item):
    return item["metadata"]["ownerReferences"][0]["uid"]


@asynccontextmanager
async def serving(stand_in):
    """Serve it on the running event loop; gives its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        server = uvicorn.Server(
            uvicorn.Config(
                stand_in.app(), log_level="error", lifespan="off", timeout_graceful_shutdown=0
            )
        )
        server.install_signal_handlers = lambda: None
        server.capture_signals = contextlib.nullcontext
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        try:
            yield listener.getsockname()[1]
        finally:
            stand_in.end_watches()
            server.should_exit = True
            await task


def write_kubeconfig(path: Path, port: int) -> Path:
    """Name the stand-in as the cluster of a kubeconfig."""
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    user = {"name": "u", "user": {"token": TOKEN}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [cluster],
                "users": [user],
                "contexts": [context],
                "current-context": "x",
            }
        )
    )
    return path


async def _main():
    async with serving(StandIn()) as port:
        print(port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main())

"""The HTTP application of a sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import hmac

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sandboxd.metrics import Metrics
from sandboxd.run import Output
from sandboxd.runs import Runs
from sandboxd.wire import (
    MAX_BODY_BYTES,
    USE_HEADER,
    Limits,
    RequestError,
    parse_run,
)
from sandboxd.workspace import Workspace, file_chunks, open_file

_OPEN = frozenset({"/healthz", "/metrics"})
"""Paths without a token: probes of the kubelet and Prometheus, with no data of an episode."""


class Server:
    """Request handlers."""

    def __init__(self, runs: Runs, workspace: Workspace, limits: Limits, metrics: Metrics) -> None:
        self._runs = runs
        self._workspace = workspace
        self._limits = limits
        self._metrics = metrics
        self._use: str | None = None

    def app(self, token_sha256: str) -> ASGIApp:
        """The ASGI application, protected by the token with this SHA-256 digest."""
        routes = [
            Route("/healthz", self.healthz),
            Route("/metrics", self.metrics),
            Route("/run", self.run, methods=["POST"]),
            Route("/files", self.put, methods=["PUT"]),
            Route("/files", self.get, methods=["GET"]),
            Route("/snapshot", self.snapshot, methods=["POST"]),
            Route("/reset", self.reset, methods=["POST"]),
        ]
        refused = (RequestError, HTTPException, ClientDisconnect)
        handlers = dict.fromkeys(refused, self.refuse)
        return _Guard(Starlette(routes=routes, exception_handlers=handlers), token_sha256)

    async def healthz(self, _: Request) -> Response:
        """Answer probes."""
        return JSONResponse({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        """Metrics in Prometheus' text format."""
        return PlainTextResponse(self._metrics.text(runs=len(self._runs.active)))

    async def run(self, request: Request) -> Response:
        """Run a program or Python code and stream its output."""
        wanted = parse_run(await _body(request), self._limits)
        self._check_use(request)
        return _RunResponse(await self._runs.open(wanted))

    async def put(self, request: Request) -> Response:
        """Write a file of the workspace."""
        self._check_use(request)
        written = await self._workspace.put(_path(request), request.stream())
        return JSONResponse({"bytes": written})

    async def get(self, request: Request) -> Response:
        """Read a file of the workspace."""
        self._check_use(request)
        file = await asyncio.to_thread(open_file, self._workspace.root, _path(request))
        return StreamingResponse(file_chunks(file), media_type="application/octet-stream")

    async def snapshot(self, request: Request) -> Response:
        """Save the workspace; refused while a run is in progress."""
        self._check_use(request)
        with self._runs.between_runs():
            name = await asyncio.to_thread(self._workspace.snapshot)
        return JSONResponse({"snapshot": name})

    async def reset(self, request: Request) -> Response:
        """End every run and the session, and restore the workspace."""
        self._check_use(request)
        to = request.query_params.get("to")
        async with self._runs.quiet():
            await self._workspace.reset(to)
            self._use = request.query_params.get("next")
        self._metrics.count("sandboxd_resets_total")
        return JSONResponse({"reset": to})

    def _check_use(self, request: Request) -> None:
        named = request.headers.get(USE_HEADER)
        if None not in (named, self._use) and named != self._use:
            raise RequestError("the sandbox was reset since this was sent", status=409)

    async def refuse(self, _: Request, error: Exception) -> Response:
        """Answer with the error message and its HTTP status."""
        known = isinstance(error, RequestError)
        status = error.status if known else getattr(error, "status_code", 400)
        self._metrics.count("sandboxd_refused_total", f'status="{status}"')
        return JSONResponse({"error": str(error)}, status_code=status)


class _Guard:
    """Middleware that refuses requests without the token, even for paths that do not exist."""

    def __init__(self, app: ASGIApp, token_sha256: str) -> None:
        self._app = app
        self._wanted = token_sha256.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN and not self._knows(scope):
            refusal = JSONResponse({"error": "no valid token"}, status_code=401)
            await refusal(scope, receive, send)
        elif scope["type"] in {"http", "lifespan"}:
            await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
        digest = hashlib.sha256(token).hexdigest().encode()
        return hmac.compare_digest(digest, self._wanted) and scheme.lower() == b"bearer"


class _RunResponse(Response):
    """Response that streams frames; a client that disconnects ends the run."""

    def __init__(self, output: Output) -> None:
        super().__init__(media_type="application/x-ndjson")
        del self.headers["content-length"]
        self._output = output

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._output.abandon()
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for frame in self._output.frames():
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes:
    received = bytearray()
    async for data in request.stream():
        received += data
        if len(received) > MAX_BODY_BYTES:
            raise RequestError(f"a request has at most {MAX_BODY_BYTES} bytes", status=413)
    return bytes(received)


def _path(request: Request) -> str:
    paths = request.query_params.getlist("path")
    if len(paths) != 1:
        raise RequestError("the query names one path")
    return paths[0]

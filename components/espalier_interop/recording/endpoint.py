"""The HTTP routes: calls in three wire formats, rewards, and the state of an attempt."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from espalier.config import ServingConfig
from espalier.records import EngineError
from espalier.wire.connections import Places, is_crowded
from espalier.wire.exchange import read_body, while_connected
from espalier.wire.keys import ApiKeys, expect_key
from espalier.wire.listening import BoundedServer, listening
from espalier.wire.requests import Refusal, RequestPart, parse
from espalier_interop.recording.attempt import Attempt
from espalier_interop.recording.attempt_manager import AttemptManager, BeginRequest
from espalier_interop.recording.call_request import WireFormat
from espalier_interop.recording.formats.chat import ChatFormat
from espalier_interop.recording.formats.messages import MessagesFormat
from espalier_interop.recording.formats.responses import ResponsesFormat
from espalier_interop.recording.recorder import Recorder

FORMATS: Mapping[str, WireFormat] = {
    "chat/completions": ChatFormat(),
    "responses": ResponsesFormat(),
    "messages": MessagesFormat(),
}
"""The wire format by the path below an attempt's `/v1/`."""
_START_WITHIN_S = 10.0
_POLL_S = 0.01
WHOLE_STREAM = {"cache-control": "no-store", "x-espalier-stream": "whole"}
"""Headers of a stream whose events are sent together once the answer is complete."""


class _Reward(RequestPart):
    """Body of a posted reward: one number, or named terms that sum to it."""

    reward: float | None = None
    terms: dict[str, float] = Field(default={}, max_length=32)

    def named(self) -> dict[str, float]:
        """The terms; a bare number is the outcome.

        Raises:
            Refusal: the body has neither, or both.
        """
        if (self.reward is None) == (not self.terms):
            raise Refusal(400, 'send {"reward": 1.0}, or {"terms": {"outcome": 1.0, ...}}')
        return self.terms if self.reward is None else {"outcome": self.reward}


class _Route(NamedTuple):
    """The parsed path of a request."""

    attempt_id: str
    rest: str
    """The path below the attempt: `v1/chat/completions`, `reward`, or empty."""

    @property
    def format(self) -> WireFormat | None:
        """Return the wire format of a model call, by its path; None for other paths."""
        return FORMATS.get(self.rest.removeprefix("v1/"))


class RecordingEndpoint:
    """Answers requests for attempts."""

    def __init__(
        self,
        recorder: Recorder,
        config: ServingConfig,
        *,
        desk: AttemptManager | None = None,
        keys: ApiKeys | None = None,
    ) -> None:
        """Answer for `recorder`.

        Args:
            recorder: knows the attempts.
            config: bounds of connections and bodies.
            desk: begins and ends attempts over HTTP; None leaves that to who plays them.
            keys: one of them is needed to begin an attempt; its address is all that a call needs.
        """
        self._desk = desk
        self._keys = keys
        self._recorder = recorder
        self._config = config
        self.places = Places(config, recorder.counts)

    @property
    def has_keys(self) -> bool:
        """Whether it asks for API keys."""
        return self._keys is not None

    def app(self) -> ASGIApp:
        """Return the ASGI application."""

        async def routed(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            route = _routed(scope["path"])
            try:
                response = await self._answered(request, route)
            except (Refusal, HTTPException) as error:
                refusal = error
                if isinstance(refusal, HTTPException):
                    refusal = Refusal(refusal.status_code, refusal.detail)
                # in the shape of the request's format; OpenAI's for other requests
                spoken = None if route is None else route.format
                body = refusal.body() if spoken is None else spoken.refused(refusal)
                response = JSONResponse(body, refusal.status, refusal.headers)
            self._recorder.counts.count_request("", response.status_code)
            await response(scope, receive, send)

        return routed

    async def _answered(self, request: Request, route: _Route | None) -> Response:
        if is_crowded(request.scope):
            raise Refusal(503, "too many requests are being answered; try again in a moment")
        if route is None:
            return await self._elsewhere(request)
        attempt = self._recorder.attempt(route.attempt_id)
        if (spoken := route.format) is not None:
            return await self._call(request, attempt, spoken)
        match route.rest, request.method:
            case "end", "POST" if self._desk is not None:
                return JSONResponse(self._desk.end(attempt))
            case "reward", "POST":
                body = await read_body(request, self._config)
                attempt.post_reward(parse(body, _Reward).named())
                return JSONResponse(_status(attempt))
            case "", "GET":
                return JSONResponse(_status(attempt))
            case "v1/models", "GET":
                model = {"id": "policy", "object": "model", "created": 0, "owned_by": "espalier"}
                return JSONResponse({"object": "list", "data": [model]})
            case _:
                raise _unknown(request)

    async def _elsewhere(self, request: Request) -> Response:
        match request.scope["path"], request.method:
            case "/health", "GET":
                told = {"status": "ok", "open_attempts": self._recorder.open_attempts}
                return JSONResponse(told)
            case "/attempts", "POST" if self._desk is not None:
                expect_key(request, self._keys)
                body = await read_body(request, self._config)
                base = str(request.base_url).rstrip("/")
                return JSONResponse(self._desk.begin(parse(body, BeginRequest), base), 201)
            case _:
                raise _unknown(request)

    async def _call(self, request: Request, attempt: Attempt, spoken: WireFormat) -> Response:
        if request.method != "POST":
            raise Refusal(405, f"{request.method} is not answered here; send a POST")
        body = await read_body(request, self._config)
        asked = spoken.read(body, attempt.remembered)
        try:
            answer = await while_connected(request.receive, attempt.answer(asked))
        except EngineError as error:
            raise Refusal(500, str(error)) from error
        if asked.stream:
            whole = b"".join(spoken.events(asked, answer))
            return Response(whole, media_type="text/event-stream", headers=WHOLE_STREAM)
        told = json.dumps(spoken.whole(asked, answer), allow_nan=False)
        return Response(told, media_type="application/json")


def _routed(path: str) -> _Route | None:
    """Return the attempt and the route below it; None if the path names no attempt."""
    parts = path.strip("/").split("/", 2)
    if parts[0] != "attempts" or len(parts) < 2:
        return None
    return _Route(parts[1], parts[2] if len(parts) > 2 else "")


def _unknown(request: Request) -> Refusal:
    return Refusal(
        404, f"{request.method} {request.scope['path'][:200]!r}: there is no such route here"
    )


def _status(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt_id": attempt.attempt_id,
        "status": "open" if attempt.lost is None else "lost",
        "lost": attempt.lost,
        "detail": attempt.lost_because,
        "calls": len(attempt.graph),
        "reward": attempt.reward,
    }


@asynccontextmanager
async def recording(
    endpoint: RecordingEndpoint, config: ServingConfig, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncGenerator[str]:
    """Serve an endpoint in this event loop; yields its address, without a trailing slash.

    Raises:
        ServingError: the address is taken, or does not belong to this machine.
    """
    with listening(host, port) as listener, _spared_collections():
        server = _InLoopServer(
            endpoint.app(), endpoint.places, drain_s=config.drain_s, has_keys=endpoint.has_keys
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            async with asyncio.timeout(_START_WITHIN_S):
                while not server.started:
                    await asyncio.sleep(_POLL_S)
            bound_host, bound_port = listener.getsockname()[:2]
            yield f"http://{bound_host}:{bound_port}"
        finally:
            server.should_exit = server.force_exit = True
            await serving


@contextmanager
def _spared_collections() -> Generator[None]:
    """Within the block the garbage collector skips the objects that exist at its beginning.

    Libraries and a policy are half a million objects. A full collection of them takes 0.3 s, in
    which no call is answered, and the objects of attempts cause one about every 2,500 calls.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _InLoopServer(BoundedServer):
    """A server that runs beside other tasks, in a process with its own signal handlers."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the process."""
        yield

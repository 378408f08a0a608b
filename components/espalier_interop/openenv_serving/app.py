"""HTTP routes and WebSockets of OpenEnv's protocol on top of the sessions of a server.

    /ws                     a session: reset, step, state, close, mcp
    /mcp                    a JSON-RPC session (socket), or tools/list (POST)
    /health /metadata /schema /state /list_environments
    /{env}/splits tasks num_tasks task task_range          tasks, without their golds

Steps need a session, and a session needs a socket. /reset and /step over HTTP would lose the
episode between two requests, so they are refused with a message that says so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import ConfigDict, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from espalier.config import EnvironmentServerConfig, ServingConfig
from espalier.records import Task
from espalier.wire.exchange import read_body
from espalier.wire.keys import ApiKeys, expect_key
from espalier.wire.openenv import (
    CallTool,
    ErrorCode,
    ListTools,
    MessageFault,
    RpcErrorCode,
    RpcRequest,
    asked,
    framed,
    framed_error,
    parsed_data,
    rpc_error,
    rpc_result,
)
from espalier.wire.requests import Refusal, RequestPart, parse
from espalier_interop.openenv_serving.session import Session, SessionLost, tools_of
from espalier_interop.openenv_serving.sessions import NoFreeSession, SessionManager
from espalier_interop.openenv_serving.tasks import ServedTasks, public

PartT = TypeVar("PartT", bound=RequestPart)
_MOST_TASKS = 1000
"""Most tasks in one answer; a client requests further ones by range."""
_NEEDS_A_SESSION = (
    "an episode needs a session: open the WebSocket /ws, and send reset and step there"
)


class _SplitAsked(RequestPart):
    split: str = Field(max_length=64)


class _TaskAsked(_SplitAsked):
    index: int


class _RangeAsked(_SplitAsked):
    start: int | None = None
    stop: int | None = None


class OpenEnvApp:
    """Answers the requests of OpenEnv clients."""

    def __init__(
        self,
        served: ServedTasks,
        config: EnvironmentServerConfig,
        bounds: ServingConfig,
        keys: ApiKeys | None = None,
    ) -> None:
        """Prepare to serve tasks.

        Args:
            served: the tasks.
            config: limits of sessions.
            bounds: limits of bodies and connections.
            keys: accepted API keys; None lets everybody in.
        """
        self._served = served
        self._config = config
        self._bounds = bounds
        self._keys = keys
        self.desk = SessionManager(served, config)

    @property
    def has_keys(self) -> bool:
        """Whether it asks for API keys."""
        return self._keys is not None

    def app(self) -> Starlette:
        """Return the ASGI application."""
        of_tasks = [
            Route(f"/{{env}}/{name}", self._answered(handler), methods=[method])
            for name, method, handler in (
                ("splits", "GET", self._splits),
                ("tasks", "POST", self._tasks),
                ("num_tasks", "POST", self._num_tasks),
                ("task", "POST", self._task),
                ("task_range", "POST", self._task_range),
            )
        ]
        plain = [
            Route(path, self._answered(handler), methods=[method])
            for path, method, handler in (
                ("/health", "GET", self._health),
                ("/metadata", "GET", self._metadata),
                ("/schema", "GET", self._schema),
                ("/state", "GET", self._state),
                ("/list_environments", "GET", self._environments),
                ("/mcp", "POST", self._mcp),
                ("/reset", "POST", self._no_session),
                ("/step", "POST", self._no_session),
            )
        ]
        sockets = [
            WebSocketRoute("/ws", self._session),
            WebSocketRoute("/mcp", self._mcp_session),
        ]
        return Starlette(routes=[*plain, *sockets, *of_tasks])

    # ------------------------------------------------------------------------------- sessions

    async def _session(self, socket: WebSocket) -> None:
        await self._held(socket, self._reply)

    async def _mcp_session(self, socket: WebSocket) -> None:
        await self._held(socket, _rpc_reply)

    async def _held(
        self, socket: WebSocket, reply: Callable[[Session, str], Awaitable[str | None]]
    ) -> None:
        """Run one session for the lifetime of its socket, and give its place back at the end."""
        try:
            expect_key(Request({**socket.scope, "type": "http"}), self._keys)
        except Refusal:
            await socket.close(code=1008)  # before it is accepted: status 403
            return
        # the client disconnected, as every client does in the end, or does not read its answers
        with suppress(WebSocketDisconnect, TimeoutError):
            await socket.accept()
            try:
                with self.desk.of_socket(socket.query_params.get("session_id")) as session:
                    await self._conversation(socket, session, reply)
            except NoFreeSession as full:
                error = framed_error(str(full), full.code, **full.counts)
                await _last_words(socket, error, 1013)
            except MessageFault as fault:
                await _last_words(socket, framed_error(str(fault), fault.code), 1008)

    async def _conversation(
        self,
        socket: WebSocket,
        session: Session,
        reply: Callable[[Session, str], Awaitable[str | None]],
    ) -> None:
        idle_s = self._config.idle_timeout_s
        while True:
            try:
                async with asyncio.timeout(idle_s):
                    received = await socket.receive_text()
            except TimeoutError:
                told = f"the session was silent for {idle_s:g} s, and is closed"
                await _last_words(socket, framed_error(told, ErrorCode.SESSION_ERROR), 1001)
                return
            except KeyError:  # a binary frame: starlette found no text in it
                told = "messages are text frames of JSON"
                await _last_words(socket, framed_error(told, ErrorCode.INVALID_JSON), 1003)
                return
            said = await reply(session, received)
            if said is None:
                await socket.close()
                return
            async with asyncio.timeout(self._bounds.write_timeout_s):
                await socket.send_text(said)

    async def _reply(self, session: Session, received: str) -> str | None:
        try:
            message = asked(received)
            match message.type:
                case "reset":
                    return framed("observation", await session.reset(message.data))
                case "step":
                    return framed("observation", await session.step(message.data))
                case "state":
                    return framed("state", session.state())
                case "mcp":
                    return framed("mcp", await _rpc_answer(session, message.data))
                case "close":
                    return None
        except MessageFault as fault:
            return framed_error(str(fault), fault.code)
        except SessionLost as lost:
            return framed_error(str(lost), ErrorCode.EXECUTION_ERROR)

    # ------------------------------------------------------------------------------- HTTP

    def _answered(
        self, handler: Callable[[Request], Awaitable[object]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                if request.url.path != "/health":
                    expect_key(request, self._keys)
                return JSONResponse(await handler(request))
            except MessageFault as fault:
                return JSONResponse({"detail": str(fault)}, 422)
            except Refusal as refusal:
                told = {"detail": str(refusal)}
                return JSONResponse(told, refusal.status, headers=dict(refusal.headers))

        return answer

    async def _health(self, _request: Request) -> object:
        return {"status": "healthy"}

    async def _metadata(self, _request: Request) -> object:
        described = self._served.instructions.strip() or f"Tasks of {self._served.name}."
        return {"name": self._served.name, "description": described}

    async def _schema(self, _request: Request) -> object:
        actions = {"oneOf": [CallTool.model_json_schema(), ListTools.model_json_schema()]}
        result = {
            "type": "object",
            "properties": {
                "tool_name": {"type": "string"},
                "result": {"type": "string"},
                "error": {"type": ["object", "null"]},
            },
        }
        state = {
            "type": "object",
            "properties": {
                "episode_id": {"type": ["string", "null"]},
                "step_count": {"type": "integer"},
            },
        }
        return {"action": actions, "observation": result, "state": state}

    async def _state(self, _request: Request) -> object:
        return {"episode_id": None, "step_count": 0}

    async def _no_session(self, _request: Request) -> object:
        raise Refusal(409, _NEEDS_A_SESSION)

    async def _environments(self, _request: Request) -> object:
        return [self._served.name]

    async def _splits(self, request: Request) -> object:
        self._known(request)
        return self._served.splits

    async def _tasks(self, request: Request) -> object:
        found = self._of_split((await self._body(request, _SplitAsked)).split)[:_MOST_TASKS]
        return {"tasks": [public(task) for task in found], "env_name": self._served.name}

    async def _num_tasks(self, request: Request) -> object:
        found = self._of_split((await self._body(request, _SplitAsked)).split)
        return {"num_tasks": len(found)}

    async def _task(self, request: Request) -> object:
        wanted = await self._body(request, _TaskAsked)
        found = self._of_split(wanted.split)
        if not 0 <= wanted.index < len(found):
            raise Refusal(400, f"index: the split has {len(found)} tasks, counted from 0")
        return {"task": public(found[wanted.index])}

    async def _task_range(self, request: Request) -> object:
        wanted = await self._body(request, _RangeAsked)
        found = self._of_split(wanted.split)[wanted.start : wanted.stop][:_MOST_TASKS]
        return {"tasks": [public(task) for task in found]}

    async def _mcp(self, request: Request) -> object:
        """Answer JSON-RPC over HTTP: create and close sessions by id, and call one's tools."""
        try:
            rpc = parsed_data((await self._body(request, _AnyObject)).model_dump(), RpcRequest)
        except (Refusal, MessageFault) as error:
            return rpc_error(None, RpcErrorCode.INVALID_REQUEST, str(error))
        session_id = rpc.params.get("session_id")
        try:
            match rpc.method:
                case "openenv/session/create":
                    return rpc_result(rpc.id, {"session_id": self.desk.create()})
                case "openenv/session/close":
                    closed = self.desk.close(session_id)
                    told = {"session_id": session_id, "closed": closed}
                    return rpc_result(rpc.id, told if closed else told | {"closing": True})
                case "tools/list" if session_id is None:
                    return rpc_result(rpc.id, {"tools": _as_mcp(tools_of(self._served.specs))})
                case _ if session_id is None:
                    return rpc_error(rpc.id, RpcErrorCode.INVALID_PARAMS, _NEEDS_A_SESSION)
                case _:
                    return await _called(self.desk.of_id(session_id), rpc)
        except NoFreeSession as full:
            return rpc_error(rpc.id, RpcErrorCode.SERVER_ERROR, str(full))
        except MessageFault as fault:
            return rpc_error(rpc.id, RpcErrorCode.INVALID_PARAMS, str(fault))

    async def _body(self, request: Request, kind: type[PartT]) -> PartT:
        if "env" in request.path_params:
            self._known(request)
        return parse(await read_body(request, self._bounds), kind)

    def _known(self, request: Request) -> None:
        name = str(request.path_params["env"])
        if name.lower() != self._served.name.lower():
            raise Refusal(404, f"there is no environment {name[:100]!r} here")

    def _of_split(self, name: str) -> list[Task]:
        return list(self._served.tasks[self._served.split(name)])


class _AnyObject(RequestPart):
    model_config = ConfigDict(extra="allow")


async def _rpc_reply(session: Session, received: str) -> str | None:
    try:
        value = _AnyObject.model_validate_json(received)
    except ValueError:
        return json.dumps(rpc_error(None, RpcErrorCode.PARSE_ERROR, "not a JSON object"))
    return json.dumps(await _rpc_answer(session, value.model_dump()), allow_nan=False)


async def _rpc_answer(session: Session, data: Mapping[str, Any]) -> dict[str, Any]:
    try:
        rpc = parsed_data(data, RpcRequest)
    except MessageFault as fault:
        return rpc_error(None, RpcErrorCode.INVALID_REQUEST, str(fault))
    return await _called(session, rpc)


async def _called(session: Session, rpc: RpcRequest) -> dict[str, Any]:
    """Answer a JSON-RPC request within a session."""
    match rpc.method:
        case "tools/list":
            return rpc_result(rpc.id, {"tools": _as_mcp(session.tools())})
        case "tools/call":
            action = {"type": "call_tool", "tool_name": rpc.params.get("name"),
                      "arguments": rpc.params.get("arguments", {})}  # fmt: skip
            try:
                played = await session.step(action)
            except MessageFault as fault:
                return rpc_error(rpc.id, RpcErrorCode.INVALID_PARAMS, str(fault))
            except SessionLost as lost:
                return rpc_error(rpc.id, RpcErrorCode.SERVER_ERROR, str(lost))
            rest = {key: value for key, value in played.items() if key != "observation"}
            return rpc_result(rpc.id, {**played["observation"], **rest})
        case _:
            told = f"{rpc.method[:100]!r} is not spoken here: tools/list, tools/call"
            return rpc_error(rpc.id, RpcErrorCode.METHOD_NOT_FOUND, told)


def _as_mcp(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools with MCP's field names."""
    return [
        {"name": one["name"], "description": one["description"], "inputSchema": one["input_schema"]}
        for one in tools
    ]


async def _last_words(socket: WebSocket, text: str, code: int) -> None:
    await socket.send_text(text)
    await socket.close(code=code)

"""Messages of OpenEnv's protocol, sent by its clients and servers over WebSocket and HTTP.

    client  {"type": "reset", "data": {"seed": 7}}
    server  {"type": "observation", "data": {"observation": {...}, "reward": null, "done": false}}
    client  {"type": "step", "data": {"type": "call_tool", "tool_name": "search", "arguments": {}}}
    server  {"type": "error", "data": {"message": "...", "code": "VALIDATION_ERROR"}}

Each socket is one session. Other message types are `state`, `close` and `mcp` (JSON-RPC 2.0). The
shapes are those of openenv 0.10.0 (openenv/core/env_server/types.py, mcp_types.py).
`environments.openenv`, a client of such servers, and `interchange`, a server, share this module.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

MAX_MESSAGE_BYTES = 1 << 20
"""Largest message in either direction; a larger one ends its connection."""


class ErrorCode(StrEnum):
    """Why the server did not answer a message."""

    INVALID_JSON = "INVALID_JSON"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    CAPACITY_REACHED = "CAPACITY_REACHED"
    FACTORY_ERROR = "FACTORY_ERROR"
    SESSION_ERROR = "SESSION_ERROR"


class RpcErrorCode:
    """Error codes of JSON-RPC 2.0."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    SERVER_ERROR = -32000


class MessageFault(Exception):
    """A message that violates the protocol; the text is written for its sender."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.VALIDATION_ERROR) -> None:
        super().__init__(message)
        self.code = code


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ClientMessage(_Part):
    """A client's message."""

    type: Literal["reset", "step", "state", "close", "mcp"]
    data: dict[str, Any] = {}


class ResetData(BaseModel):
    """Data of a reset message; further keys belong to the environment and are ignored here."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    seed: int | None = Field(default=None, ge=0)
    episode_id: str | None = Field(default=None, max_length=255)
    task_id: str | None = Field(default=None, max_length=255)
    split: str | None = Field(default=None, max_length=64)


class CallTool(_Part):
    """The action that calls a tool."""

    type: Literal["call_tool"] = "call_tool"
    tool_name: str = Field(max_length=256)
    arguments: dict[str, Any] = {}
    metadata: dict[str, Any] = {}


class ListTools(_Part):
    """The action that lists the tools."""

    type: Literal["list_tools"] = "list_tools"
    metadata: dict[str, Any] = {}


class RpcRequest(_Part):
    """A JSON-RPC 2.0 request."""

    jsonrpc: Literal["2.0"]
    method: str = Field(max_length=256)
    params: dict[str, Any] = {}
    id: str | int | None = None


class Observed(BaseModel):
    """A server's answer to a reset or a step; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None


class Answered(BaseModel):
    """A server's message."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: Literal["observation", "state", "error", "mcp"]
    data: dict[str, Any]


PartT = TypeVar("PartT", bound=BaseModel)


def asked(raw: str | bytes) -> ClientMessage:
    """Parse a client's message.

    Raises:
        MessageFault: it is not JSON, or its type is unknown.
    """
    value = _json(raw)
    kind = value.get("type")
    if kind not in ("reset", "step", "state", "close", "mcp"):
        raise MessageFault(f"unknown message type: {str(kind)[:100]!r}", ErrorCode.UNKNOWN_TYPE)
    return _parsed(value, ClientMessage)


def answered(raw: str | bytes) -> Answered:
    """Parse a server's message.

    Raises:
        MessageFault: it is malformed.
    """
    return _parsed(_json(raw), Answered)


def parsed_data(data: Mapping[str, Any], kind: type[PartT]) -> PartT:
    """Validate the data of a message as a model of type `kind`.

    Raises:
        MessageFault: the message names the invalid field.
    """
    return _parsed(data, kind)


def _json(raw: str | bytes) -> dict[str, Any]:
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise MessageFault(f"not JSON ({error})", ErrorCode.INVALID_JSON) from error
    if not isinstance(value, dict):
        raise MessageFault("a message is a JSON object", ErrorCode.INVALID_JSON)
    return value


def _parsed(value: Mapping[str, Any], kind: type[PartT]) -> PartT:
    try:
        return kind.model_validate(dict(value))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise MessageFault(f"{where}: {first['msg']}" if where else first["msg"]) from error


def observation(
    content: Mapping[str, Any],
    *,
    reward: float | None = None,
    done: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the body that answers a reset or a step, the same over HTTP and in a socket."""
    assert reward is None or math.isfinite(reward), "JSON has no such number"
    body = {"observation": dict(content), "reward": reward, "done": done}
    return body | ({"metadata": dict(metadata)} if metadata else {})


def framed(kind: str, data: Mapping[str, Any]) -> str:
    """Return a server's message as JSON text."""
    return json.dumps({"type": kind, "data": dict(data)}, allow_nan=False)


def framed_error(message: str, code: ErrorCode, **further: object) -> str:
    """Return a server's error message as JSON text."""
    return framed("error", {"message": message, "code": code.value, **further})


def rpc_result(request_id: str | int | None, result: object) -> dict[str, Any]:
    """Return a JSON-RPC success response."""
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def rpc_error(request_id: str | int | None, code: int, message: str) -> dict[str, Any]:
    """Return a JSON-RPC error response."""
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}

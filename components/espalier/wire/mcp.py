"""Messages of the Model Context Protocol: JSON-RPC 2.0, as a client of tools needs it.

    client  {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": ...}}
    server  {"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": ..., "serverInfo": {...}}}
    client  {"jsonrpc": "2.0", "method": "notifications/initialized"}
    client  {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
    client  {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": ..., ...}}
    server  {"jsonrpc": "2.0", "id": 3, "result": {"content": [{"type": "text", "text": ...}]}}

Specification: modelcontextprotocol, revisions 2024-11-05 to 2025-11-25. Nothing but tools is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from espalier import __version__

PROTOCOL = "2025-06-18"
"""What is asked for; a server may answer with another of `SPOKEN`."""
SPOKEN = frozenset({"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"})
MAX_ANSWER_BYTES = 256 * 1024
"""Of a message of a server; a longer one is not read."""
_MAX_TEXT = 2000
PartT = TypeVar("PartT", bound=BaseModel)


class MessageFault(Exception):
    """A server's message that is none of the protocol's."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class RpcError(_Part):
    """Why a request was refused."""

    code: int = 0
    message: str = ""


class Initialized(_Part):
    """Result of `initialize`."""

    protocol_version: str = Field(validation_alias="protocolVersion")


class ListedTool(_Part):
    """A tool of a list."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = Field(validation_alias="inputSchema")


class ListedTools(_Part):
    """Result of `tools/list`; with a cursor there is more."""

    tools: list[ListedTool]
    next_cursor: str | None = Field(default=None, validation_alias="nextCursor")


class Resource(_Part):
    """A resource whose text stands in a result."""

    uri: str = ""
    text: str | None = None


class Content(_Part):
    """A part of a result."""

    type: str
    text: str | None = None
    resource: Resource | None = None
    uri: str = ""

    def shown(self) -> str:
        """As a policy reads it; what is no text is named."""
        if self.type == "text" and self.text is not None:
            return self.text
        if self.resource is not None and self.resource.text is not None:
            return self.resource.text
        where = self.uri or (self.resource.uri if self.resource else "")
        return f"({self.type}{f' {where}' if where else ''})"


class Called(_Part):
    """Result of `tools/call`."""

    content: list[Content] = []
    structured: dict[str, Any] | None = Field(default=None, validation_alias="structuredContent")
    is_error: bool = Field(default=False, validation_alias="isError")

    def shown(self) -> str:
        """What a policy reads; structured content where there is no other."""
        if self.content or self.structured is None:
            return "\n".join(part.shown() for part in self.content)
        return json.dumps(self.structured, ensure_ascii=False)


def request(number: int, method: str, params: Mapping[str, Any]) -> str:
    """A request as one line of JSON.

    Raises:
        ValueError: a number that JSON cannot hold, as a policy's call may have.
    """
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)}
    return json.dumps(message, allow_nan=False)


def notification(method: str, params: Mapping[str, Any] | None = None) -> str:
    """A notification as one line of JSON."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return json.dumps(message | ({"params": dict(params)} if params else {}))


def initialize_params() -> dict[str, Any]:
    """Parameters of the first request; no capability of a client is offered."""
    return {
        "protocolVersion": PROTOCOL,
        "capabilities": {},
        "clientInfo": {"name": "espalier", "version": __version__},
    }


def answer_to(number: int, text: str | bytes) -> dict[str, Any] | RpcError:
    """The result in a response, or why there is none.

    Raises:
        MessageFault: it is no response to that request.
    """
    try:
        message: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageFault(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise MessageFault("not a JSON object")
    if message.get("jsonrpc") != "2.0" or message.get("id") != number:  # pyright: ignore[reportUnknownMemberType]
        raise MessageFault("not JSON-RPC 2.0, or the response to another request")
    if message.get("error") is not None:  # pyright: ignore[reportUnknownMemberType]
        return parsed(message["error"], RpcError)
    result: object = message.get("result")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(result, dict):
        raise MessageFault("a response without a result")
    return result  # pyright: ignore[reportUnknownVariableType]


def parsed(value: object, kind: type[PartT]) -> PartT:
    """A part of a message.

    Raises:
        MessageFault: naming the field that is not as the protocol has it.
    """
    try:
        return kind.model_validate(value)
    except (ValidationError, RecursionError) as error:
        if isinstance(error, RecursionError):
            raise MessageFault("nested too deeply") from error
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or kind.__name__
        raise MessageFault(f"{where}: {first['msg']}"[:_MAX_TEXT]) from error

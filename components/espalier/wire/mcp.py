"""Messages of the Model Context Protocol (JSON-RPC 2.0), as far as a client of tools needs them.

    client  {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": ...}}
    server  {"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": ..., "serverInfo": {...}}}
    client  {"jsonrpc": "2.0", "method": "notifications/initialized"}
    client  {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
    client  {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": ..., ...}}
    server  {"jsonrpc": "2.0", "id": 3, "result": {"content": [{"type": "text", "text": ...}]}}

Specification: modelcontextprotocol, revisions 2024-11-05 to 2025-11-25. Only tools are used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from espalier import __version__

PROTOCOL = "2025-06-18"
"""The revision a client requests; a server may answer with another one in `SPOKEN`."""
SPOKEN = frozenset({"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"})
MAX_ANSWER_BYTES = 256 * 1024
"""Largest message accepted from a server; a longer one is not read."""
_MAX_TEXT = 2000
PartT = TypeVar("PartT", bound=BaseModel)


class MessageFault(Exception):
    """A message from the server that violates the protocol."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class RpcError(_Part):
    """The error object of a JSON-RPC response."""

    code: int = 0
    message: str = ""


class Initialized(_Part):
    """The result of `initialize`."""

    protocol_version: str = Field(validation_alias="protocolVersion")


class ListedTool(_Part):
    """One tool in the result of `tools/list`."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = Field(validation_alias="inputSchema")


class ListedTools(_Part):
    """The result of `tools/list`; a cursor means that there are more pages."""

    tools: list[ListedTool]
    next_cursor: str | None = Field(default=None, validation_alias="nextCursor")


class Resource(_Part):
    """A resource embedded in a result, with its text if it has one."""

    uri: str = ""
    text: str | None = None


class Content(_Part):
    """One content part of a `tools/call` result."""

    type: str
    text: str | None = None
    resource: Resource | None = None
    uri: str = ""

    def shown(self) -> str:
        """Return the text the policy reads; parts without text are shown as their type and URI."""
        if self.type == "text" and self.text is not None:
            return self.text
        if self.resource is not None and self.resource.text is not None:
            return self.resource.text
        where = self.uri or (self.resource.uri if self.resource else "")
        return f"({self.type}{f' {where}' if where else ''})"


class Called(_Part):
    """The result of `tools/call`."""

    content: list[Content] = []
    structured: dict[str, Any] | None = Field(default=None, validation_alias="structuredContent")
    is_error: bool = Field(default=False, validation_alias="isError")

    def shown(self) -> str:
        """Return the text the policy reads; structured content is used if there is no other."""
        if self.content or self.structured is None:
            return "\n".join(part.shown() for part in self.content)
        return json.dumps(self.structured, ensure_ascii=False)


def request(number: int, method: str, params: Mapping[str, Any]) -> str:
    """Return a request as one line of JSON.

    Raises:
        ValueError: the parameters hold NaN or infinity, which a policy's call may contain.
    """
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)}
    return json.dumps(message, allow_nan=False)


def notification(method: str, params: Mapping[str, Any] | None = None) -> str:
    """Return a notification as one line of JSON."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return json.dumps(message | ({"params": dict(params)} if params else {}))


def initialize_params() -> dict[str, Any]:
    """Return the parameters of the first request; it offers no client capabilities."""
    return {
        "protocolVersion": PROTOCOL,
        "capabilities": {},
        "clientInfo": {"name": "espalier", "version": __version__},
    }


def answer_to(number: int, text: str | bytes) -> dict[str, Any] | RpcError:
    """Return the result in a response, or its error object.

    Raises:
        MessageFault: the text is not a response to request `number`.
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
    """Validate a part of a message as a model of type `kind`.

    Raises:
        MessageFault: the message names the field that violates the protocol.
    """
    try:
        return kind.model_validate(value)
    except (ValidationError, RecursionError) as error:
        if isinstance(error, RecursionError):
            raise MessageFault("nested too deeply") from error
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or kind.__name__
        raise MessageFault(f"{where}: {first['msg']}"[:_MAX_TEXT]) from error

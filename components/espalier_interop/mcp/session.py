"""A session with one MCP server: initialised, its tools listed, its tools called."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from espalier.environments.contract import EnvironmentLostError
from espalier.environments.described import MAX_TOOLS, described, within_bounds
from espalier.environments.interpreter import shortened
from espalier.environments.tools import ToolError, ToolOutput
from espalier.records import DataError
from espalier.records.message import ToolSpec
from espalier.wire.mcp import (
    SPOKEN,
    Called,
    Initialized,
    ListedTools,
    MessageFault,
    RpcError,
    answer_to,
    initialize_params,
    notification,
    parsed,
    request,
)
from espalier_interop.mcp.config import McpConfig, ServerConfig
from espalier_interop.mcp.transports import HttpTransport, NoAnswerError, Transport

PartT = TypeVar("PartT", bound=BaseModel)
_MAX_PAGES = 32
"""Most pages of a list of tools."""


class McpSession:
    """Sends requests to one server, one after the other.

    A fault of the server loses the episode; a fault of a call is a ToolError.
    """

    def __init__(self, name: str, transport: Transport, config: McpConfig) -> None:
        self._name = name
        self._transport = transport
        self._config = config
        self._numbers = itertools.count(1)
        self._has_begun = False

    async def list_tools(self) -> list[ToolSpec]:
        """Return the tools that the profile offers, under the server's own names.

        Raises:
            DataError: the list is empty or malformed, or lacks a tool that the profile names.
            EnvironmentLostError: the server cannot be reached or does not speak MCP.
        """
        await self._begin()
        listed: list[ToolSpec] = []
        cursor: str | None = None
        where = f"the MCP server {self._name}"
        for _ in range(_MAX_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            page = await self._result("tools/list", params, ListedTools)
            listed += [
                described(where, tool.name, tool.description, tool.input_schema)
                for tool in page.tools
            ]
            cursor = page.next_cursor
            if cursor is None or len(listed) > MAX_TOOLS:
                break
        return self._offered(where, listed)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool and return its output.

        Raises:
            ToolError: the call is refused, times out, or fails.
            EnvironmentLostError: the server, or the connection to it, is lost.
            ProgramBrokeSandboxError: the call ended the server.
        """
        await self._begin()
        number = next(self._numbers)
        params = {"name": tool, "arguments": dict(arguments)}
        try:
            asked = request(number, "tools/call", params)
        except ValueError as error:  # infinity, which a policy's call may hold
            raise ToolError(f"not JSON: {error}") from error
        try:
            text = await self._transport.ask(asked, number, self._config.call_timeout_s)
        except NoAnswerError as error:
            await self._transport.tell(
                notification("notifications/cancelled", {"requestId": number})
            )
            raise ToolError(str(error)) from error
        found = self._read(number, text)
        most = self._config.max_result_characters
        if isinstance(found, RpcError):
            raise ToolError(shortened(found.message or f"code {found.code}", most))
        called = self._parsed(found, Called)
        shown = shortened(called.shown(), most)
        if called.is_error:
            raise ToolError(shown or "the tool failed")
        return ToolOutput(shown)

    async def _begin(self) -> None:
        if self._has_begun:
            return
        begun = await self._result("initialize", initialize_params(), Initialized)
        if begun.protocol_version not in SPOKEN:
            raise self._lost(
                f"speaks MCP {begun.protocol_version[:40]}; known are {', '.join(sorted(SPOKEN))}"
            )
        if isinstance(self._transport, HttpTransport):
            self._transport.speak(begun.protocol_version)
        await self._transport.tell(notification("notifications/initialized"))
        self._has_begun = True

    async def _result(self, method: str, params: Mapping[str, Any], kind: type[PartT]) -> PartT:
        number = next(self._numbers)
        try:
            text = await self._transport.ask(
                request(number, method, params), number, self._config.start_timeout_s
            )
        except NoAnswerError as error:
            raise self._lost(f"{method}: {error}") from error
        found = self._read(number, text)
        if isinstance(found, RpcError):
            raise self._lost(f"{method} was refused: {found.message[:500]}")
        return self._parsed(found, kind)

    def _read(self, number: int, text: str) -> dict[str, Any] | RpcError:
        try:
            return answer_to(number, text)
        except MessageFault as fault:
            raise self._lost(f"sent something else than MCP's messages: {fault}") from fault

    def _parsed(self, value: Mapping[str, Any], kind: type[PartT]) -> PartT:
        try:
            return parsed(value, kind)
        except MessageFault as fault:
            raise self._lost(f"sent something else than MCP's messages: {fault}") from fault

    def _offered(self, where: str, listed: list[ToolSpec]) -> list[ToolSpec]:
        wanted = self._server.tools
        by_name = {spec.name: spec for spec in listed}
        if missing := [name for name in wanted if name not in by_name]:
            raise DataError(
                f"{where}: has no tool named {', '.join(missing)}; it lists "
                f"{', '.join(by_name) or 'none'}"
            )
        return list(within_bounds(where, [by_name[name] for name in wanted] if wanted else listed))

    @property
    def _server(self) -> ServerConfig:
        return self._config.servers[self._name]

    def _lost(self, why: str) -> EnvironmentLostError:
        return EnvironmentLostError(f"the MCP server {self._name}: {why}")

"""A session on an OpenEnv server: one WebSocket, one episode after another."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import urlsplit, urlunsplit

import httpx2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from espalier.environments.contract import EnvironmentLostError
from espalier.records import EspalierError
from espalier.wire.openenv import (
    MAX_MESSAGE_BYTES,
    Answered,
    ErrorCode,
    MessageFault,
    Observed,
    answered,
    parsed_data,
)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class Server(NamedTuple):
    """The address of a server, and how long to wait for it."""

    url: str
    timeout_s: float
    key: str | None = None

    @property
    def socket_url(self) -> str:
        """Address of its WebSocket."""
        parts = urlsplit(self.url)
        scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
        path = parts.path.rstrip("/")
        path = path if path.endswith("/ws") else f"{path}/ws"
        return urlunsplit((scheme, parts.netloc, path, "", ""))

    async def schema(self) -> object:
        """Return the answer to GET /schema.

        Raises:
            EnvironmentLostError: the server does not answer, or not with JSON.
        """
        parts = urlsplit(self.url)
        scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
        path = parts.path.rstrip("/").removesuffix("/ws") + "/schema"
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        url = urlunsplit((scheme, parts.netloc, path, "", ""))
        try:
            async with httpx2.AsyncClient(timeout=self.timeout_s, trust_env=False) as client:
                answer = await client.get(url, headers=headers)
                answer.raise_for_status()
                return answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise EnvironmentLostError(f"{url}: the schema could not be read ({error})") from error


class ActionRefused(Exception):
    """The server did not accept an action; the text is for the policy."""


class Line(Protocol):
    """The connection to a server for one session."""

    async def open(self) -> None:
        """Connect to the server.

        Raises:
            EnvironmentLostError: the server cannot be reached.
        """
        ...

    async def exchange(self, text: str, within_s: float, *, by_policy: bool) -> str | bytes:
        """Send a message and return the next one.

        Raises:
            EnvironmentLostError: the connection broke, or nothing came in time.
            ProgramBrokeSandboxError: the same, caused by a message of the policy.
        """
        ...

    async def close(self) -> None:
        """Close the connection properly."""
        ...

    def abort(self) -> None:
        """Drop the connection at once, without waiting."""
        ...


class SocketLine:
    """A WebSocket to a running server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._socket: ClientConnection | None = None

    async def open(self) -> None:
        """Connect the WebSocket."""
        headers = {"Authorization": f"Bearer {self._server.key}"} if self._server.key else None
        url = self._server.socket_url
        try:
            self._socket = await connect(
                url,
                additional_headers=headers,
                open_timeout=self._server.timeout_s,
                close_timeout=1.0,
                max_size=MAX_MESSAGE_BYTES,
                compression=None,
                proxy=None,
            )
        except (OSError, WebSocketException, TimeoutError) as error:
            raise EnvironmentLostError(f"{url}: no session could be opened ({error})") from error

    async def exchange(self, text: str, within_s: float, *, by_policy: bool) -> str | bytes:
        """Send a message and return the next one."""
        del by_policy  # a server that is not ours may fail for any reason
        assert self._socket is not None, "it was opened"
        where = self._server.url
        try:
            async with asyncio.timeout(within_s):
                await self._socket.send(text)
                return await self._socket.recv()
        except TimeoutError as error:
            raise EnvironmentLostError(f"{where}: no answer in {within_s:g} s") from error
        except (OSError, WebSocketException) as error:
            raise EnvironmentLostError(f"{where}: the connection broke ({error})") from error

    async def close(self) -> None:
        """Close the WebSocket."""
        if self._socket is not None:
            await self._socket.close()
            self._socket = None

    def abort(self) -> None:
        """Drop the connection at once."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.transport.abort()


class RemoteSession:
    """Resets and steps over one connection; use it in the event loop that opened it.

    A fault of the server or the connection loses the episode. A fault of an action is an
    `ActionRefused`.
    """

    def __init__(self, where: str, line: Line, timeout_s: float) -> None:
        self._where = where
        self._line = line
        self._timeout_s = timeout_s
        self._is_open = False

    async def __aenter__(self) -> Self:
        """Connect to the server.

        Raises:
            EnvironmentLostError: the server cannot be reached.
        """
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        if self._is_open:
            self._is_open = False
            await self._line.close()

    async def open(self) -> None:
        """Connect to the server.

        Raises:
            EnvironmentLostError: the server cannot be reached.
        """
        await self._line.open()
        self._is_open = True

    def abort(self) -> None:
        """Drop the connection at once, without waiting."""
        if self._is_open:
            self._is_open = False
            self._line.abort()

    async def reset(self, data: Mapping[str, Any]) -> Observed:
        """Begin an episode; if all sessions are taken, retry until the timeout.

        Raises:
            EnvironmentLostError: no session is free, or the server refuses the arguments.
        """
        pause_s = _FIRST_PAUSE_S
        end = time.monotonic() + self._timeout_s
        while True:
            if not self._is_open:
                await self.open()
            told = await self._exchange({"type": "reset", "data": dict(data)})
            code = told.data.get("code") if told.type == "error" else None
            if code != ErrorCode.CAPACITY_REACHED:
                break
            self.abort()
            if time.monotonic() + pause_s > end:
                raise self._lost("no episode could be begun in time")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        try:
            return self._observed(told)
        except ActionRefused as refused:
            raise self._lost(f"reset with {dict(data)} was refused: {refused}") from refused

    async def step(self, action: Mapping[str, Any]) -> Observed:
        """Play an action and return the observation.

        Raises:
            ActionRefused: the server does not accept the action.
            EnvironmentLostError: the connection broke, or the server did not answer in time.
            ProgramBrokeSandboxError: the action ended a server in a sandbox.
        """
        return self._observed(await self._exchange({"type": "step", "data": dict(action)}))

    async def list_tools(self, reset: Mapping[str, Any]) -> object:
        """Return the answer to `list_tools`, after a reset, which some servers require.

        Raises:
            EnvironmentLostError: the connection broke.
        """
        await self.reset(reset)
        try:
            told = await self.step({"type": "list_tools"})
        except ActionRefused:
            return None
        return told.observation.get("tools")

    async def _exchange(self, message: Mapping[str, Any]) -> Answered:
        if not self._is_open:
            raise EnvironmentLostError(f"{self._where}: the session is closed")
        try:
            text = json.dumps(message, allow_nan=False)
        except ValueError as error:  # infinity, which a policy's call may hold
            raise ActionRefused(f"not JSON: {error}") from error
        by_policy = message["type"] == "step"
        try:
            told = await self._line.exchange(text, self._timeout_s, by_policy=by_policy)
        except EspalierError:
            self.abort()
            raise
        try:
            return answered(told)
        except MessageFault as fault:
            raise self._lost(f"sent something else than OpenEnv's messages: {fault}") from fault

    def _observed(self, told: Answered) -> Observed:
        if told.type == "error":
            code, text = told.data.get("code"), str(told.data.get("message", ""))[:2000]
            if code in (ErrorCode.SESSION_ERROR, ErrorCode.FACTORY_ERROR):
                raise self._lost(f"{code}: {text}")
            raise ActionRefused(text or str(code))
        if told.type != "observation":
            raise self._lost(f"answered with {told.type!r} where an observation belongs")
        try:
            return parsed_data(told.data, Observed)
        except MessageFault as fault:
            raise self._lost(f"sent a malformed observation: {fault}") from fault

    def _lost(self, why: str) -> EnvironmentLostError:
        self.abort()
        return EnvironmentLostError(f"{self._where}: {why}")


def session_on(server: Server) -> RemoteSession:
    """Return an unopened session on a running server."""
    return RemoteSession(server.url, SocketLine(server), server.timeout_s)

"""The two transports to a server: a program in the episode's sandbox, and streamable HTTP."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import aclosing, suppress
from functools import cache
from typing import Any, Protocol, cast

import httpx2

from espalier.environments.contract import EnvironmentLostError, sandbox_losses
from espalier.environments.server_process import read_object
from espalier.environments.server_sandbox import MARGIN_S, ServerSandbox
from espalier.records import DataError
from espalier.sandbox.call_time import current_call
from espalier.sandbox.choice import PoolThread
from espalier.sandbox.protocol import SandboxLost
from espalier.wire.mcp import MAX_ANSWER_BYTES
from espalier_interop.mcp import inside
from espalier_interop.mcp.config import McpConfig, ServerConfig
from espalier_interop.mcp.inside import reply_to

_TOLD_S = 5.0
"""Time limit of notifications and of closing."""
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,1024}")
_ENDINGS = 4
"""Number of threads that end sessions."""


class NoAnswerError(Exception):
    """A server did not answer a request properly; the text is for the policy."""


class Transport(Protocol):
    """The connection to one server in one episode."""

    async def ask(self, message: str, number: int, within_s: float) -> str:
        """Send a request and return the text of its response.

        Raises:
            NoAnswerError: no response in time, or one that is too long.
            EnvironmentLostError: the server, or the connection to it, is lost.
            ProgramBrokeSandboxError: a call of the policy ended the server.
        """
        ...

    async def tell(self, message: str) -> None:
        """Send a notification; errors are those of `ask`."""
        ...

    def end(self) -> None:
        """End the episode."""
        ...


class SandboxedPrograms:
    """The servers of an episode in its sandbox; each starts at its first request."""

    def __init__(
        self, sandboxes: PoolThread, config: McpConfig, packed: Mapping[str, bytes]
    ) -> None:
        self._config = config
        self._packed = packed
        self._servers = ServerSandbox(sandboxes, inside.__file__)
        self._started: set[str] = set()

    async def ask(self, server: str, message: str, number: int, within_s: float) -> str:
        """Send a request to a server and return the text of its response."""
        begun = server in self._started
        if (call := current_call()) is not None:
            # stop before the sandbox kills the session: a slow server is not a lost one
            within_s = min(within_s, call.programs_left_s - MARGIN_S)
            if within_s <= 0:
                raise NoAnswerError("no time is left for it in this message")
        found = await self._call(server, "ask", message, number, within_s, within_s=within_s)
        if (answer := found.get("answer")) is not None:
            return str(answer)
        if found.get("late"):
            raise NoAnswerError(f"no answer in {within_s:g} s")
        if found.get("long"):
            raise NoAnswerError(f"the result has more than {MAX_ANSWER_BYTES} bytes")
        last = str(found.get("said", "")).strip().splitlines()[-2:]
        said = "; ".join(line.strip() for line in last) or "without a message"
        with sandbox_losses():
            raise SandboxLost(
                f"the server {server} ended (status {found.get('ended')}): {said}",
                by_program=begun,
            )

    async def tell(self, server: str, message: str) -> None:
        """Send a notification to a server."""
        await self._call(server, "tell", message)

    def end(self) -> None:
        """Give the sandbox back, which ends the servers."""
        self._servers.end()

    async def _call(
        self, server: str, method: str, *arguments: object, within_s: float = 0.0
    ) -> dict[str, Any]:
        by_program = bool(self._started)
        if server not in self._started:
            config = self._config.servers[server]
            found = await self._servers.start(
                server,
                (config.command, config.variables),
                self._packed.get(server, b""),
                self._config.start_timeout_s,
                by_program=by_program,
            )
            if fault := found.get("fault"):
                with sandbox_losses():
                    raise SandboxLost(f"the server {server} cannot be started: {fault}")
            self._started.add(server)
        return await self._servers.call(
            server, method, *arguments, within_s=within_s, by_program=by_program
        )


class ProgramTransport:
    """The connection to one server in the sandbox."""

    def __init__(self, programs: SandboxedPrograms, server: str) -> None:
        self._programs = programs
        self._server = server

    async def ask(self, message: str, number: int, within_s: float) -> str:
        """Send a request and return the text of its response."""
        return await self._programs.ask(self._server, message, number, within_s)

    async def tell(self, message: str) -> None:
        """Send a notification."""
        await self._programs.tell(self._server, message)

    def end(self) -> None:
        """End the servers of the episode."""
        self._programs.end()


class HttpTransport:
    """Streamable HTTP: each message is a POST, answered as JSON or as a stream of events.

    If a server gives out session ids, each episode has its own session.
    """

    def __init__(
        self, server: ServerConfig, environment: Mapping[str, str], endings: SessionEndings
    ) -> None:
        self._url = server.url
        self._where = server.url.partition("?")[0]  # a query may hold a key, and errors are logged
        self._endings = endings
        self._headers = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        if key := environment.get(server.key_variable):
            self._headers["Authorization"] = f"Bearer {key}"
        elif server.key_variable:
            raise DataError(
                f"{self._where}: the variable {server.key_variable} of its key is unset"
            )
        self._session: str | None = None

    def speak(self, protocol: str) -> None:
        """Send the protocol version with every request from now on."""
        self._headers["MCP-Protocol-Version"] = protocol

    async def ask(self, message: str, number: int, within_s: float) -> str:
        """Post a request and return the text of its response."""
        try:
            async with asyncio.timeout(within_s):
                return await self._posted(message, number)
        except TimeoutError as error:
            raise NoAnswerError(f"no answer in {within_s:g} s") from error

    async def tell(self, message: str) -> None:
        """Post a notification, and ignore a timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOLD_S):
                await self._posted(message, None)

    def end(self) -> None:
        """End the session in the background."""
        session, self._session = self._session, None
        if session is not None:
            self._endings.submit(self._url, dict(self._headers))

    async def _posted(self, message: str, number: int | None) -> str:
        try:
            async with (
                httpx2.AsyncClient(timeout=None, trust_env=False, verify=_certificates()) as client,
                client.stream(
                    "POST", self._url, content=message.encode(), headers=self._headers
                ) as answer,
            ):
                if answer.status_code >= 400:
                    raise self._lost(f"status {answer.status_code}")
                if session := answer.headers.get("mcp-session-id"):
                    if not _SESSION_ID.fullmatch(session):
                        raise self._lost("sent an invalid session id")
                    self._session = session
                    self._headers["Mcp-Session-Id"] = session
                if number is None:
                    return ""
                kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
                chunks = cast("AsyncIterator[bytes]", answer.aiter_bytes())
                if kind == "application/json":
                    return await _whole(chunks)
                if kind == "text/event-stream":
                    return await self._event(chunks, number)
                raise self._lost(f"answered with {kind or 'no content type'}")
        except httpx2.HTTPError as error:
            raise self._lost(f"cannot be reached ({error or type(error).__name__})") from error

    async def _event(self, chunks: AsyncIterator[bytes], number: int) -> str:
        """Return the response in a stream of events; requests of the server are refused."""
        async with aclosing(_events(chunks)) as events:
            async for data in events:
                message = read_object(data)
                if message is None:
                    continue
                if "method" in message:
                    if (reply := reply_to(message)) is not None:
                        await self._posted(reply, None)
                elif message.get("id") == number:
                    return data
        raise self._lost("its stream ended before the answer")

    def _lost(self, why: str) -> EnvironmentLostError:
        return EnvironmentLostError(f"{self._where}: {why}")


class SessionEndings:
    """Ends sessions on servers in the background; gives up on those that take too long."""

    def __init__(self) -> None:
        self._workers = ThreadPoolExecutor(_ENDINGS, thread_name_prefix="espalier-mcp")
        self._asked: list[Future[None]] = []

    def submit(self, url: str, headers: Mapping[str, str]) -> None:
        """End the session named in the headers, in the background."""
        self._asked = [one for one in self._asked if not one.done()]
        self._asked.append(self._workers.submit(_end_session, url, headers))

    def close(self) -> None:
        """Wait a few seconds for pending endings."""
        wait(self._asked, timeout=_TOLD_S)
        self._workers.shutdown(wait=False, cancel_futures=True)


def _end_session(url: str, headers: Mapping[str, str]) -> None:
    with suppress(httpx2.HTTPError):  # the server drops the session by itself later
        httpx2.delete(
            url, headers=dict(headers), timeout=2.0, trust_env=False, verify=_certificates()
        )


async def _whole(chunks: AsyncIterator[bytes]) -> str:
    read = b""
    async for chunk in chunks:
        read += chunk
        _refuse_long(len(read))
    return read.decode(errors="replace")


async def _events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    """Yield the data of each event of a stream."""
    unread, data = b"", bytearray()
    async for chunk in chunks:
        unread += chunk
        while b"\n" in unread:
            line, _, unread = unread.partition(b"\n")
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data += line.removeprefix(b"data:").removeprefix(b" ") + b"\n"
                _refuse_long(len(data))
            elif not line and data:
                yield data.decode(errors="replace")
                data.clear()
        _refuse_long(len(unread))


def _refuse_long(num_bytes: int) -> None:
    if num_bytes > MAX_ANSWER_BYTES:
        raise NoAnswerError(f"the result has more than {MAX_ANSWER_BYTES} bytes")


@cache
def _certificates() -> ssl.SSLContext:
    """Return the TLS context; cached, since loading it takes longer than most calls."""
    return ssl.create_default_context()


def environment_variables() -> Mapping[str, str]:
    """Return the environment variables of this process, which hold the keys."""
    return os.environ

"""The two ways to a server: a program in the episode's sandbox, and streamable HTTP."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import secrets
import ssl
import sys
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, aclosing, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

import httpx2

from espalier.environments.contract import EnvironmentLostError, sandbox_losses
from espalier.environments.mcp import inside
from espalier.environments.mcp.config import McpConfig, ServerConfig
from espalier.environments.mcp.inside import read_object, reply_to
from espalier.records import DataError
from espalier.sandbox import Sandbox
from espalier.sandbox.call_time import current_call
from espalier.sandbox.choice import PoolThread
from espalier.sandbox.protocol import SandboxLost, SandboxRefused
from espalier.wire.mcp import MAX_ANSWER_BYTES
from sandboxd.wire import MAX_FILE_BYTES

_MARGIN_S = 5.0
"""Beyond a deadline inside the sandbox, for the way there and back; and of what has no other."""
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,1024}")
_ENDINGS = 4
"""Threads that end sessions."""


class NoAnswerError(Exception):
    """A server did not answer a request as it should have; the text is for the policy."""


class Transport(Protocol):
    """The way to one server in one episode."""

    async def ask(self, message: str, number: int, within_s: float) -> str:
        """Send a request; the text of its response.

        Raises:
            NoAnswerError: none came in time, or one that is too long.
            EnvironmentLostError: the server, or the way to it, is gone.
            ProgramBrokeSandboxError: a call of the policy ended the server.
        """
        ...

    async def tell(self, message: str) -> None:
        """Send a notification; errors as of `ask`."""
        ...

    def end(self) -> None:
        """The episode is over."""
        ...


class SandboxedPrograms:
    """The sandbox of an episode, in which its servers run; borrowed when the first one is asked.

    A session of the sandbox stands still between two calls, and the servers with it: no time of
    theirs passes while the policy thinks.
    """

    def __init__(
        self,
        sandboxes: PoolThread,
        config: McpConfig,
        packed: Mapping[str, bytes],
    ) -> None:
        self._sandboxes = sandboxes
        self._config = config
        self._packed = packed
        self._held = AsyncExitStack()
        self._sandbox: Sandbox | None = None
        self._started: set[str] = set()
        self._is_lost = False

    async def ask(self, server: str, message: str, number: int, within_s: float) -> str:
        """See `Transport`."""
        begun = server in self._started
        if (call := current_call()) is not None:
            # of what the episode loop allows: within it, a slow server is told from a lost one
            within_s = min(within_s, call.programs_left_s - _MARGIN_S)
            if within_s <= 0:
                raise NoAnswerError("no time is left for it in this message")
        asked = json.dumps([message, number, within_s])
        file = f"answer-{secrets.token_hex(8)}.json"  # which no tool of a server can lie in wait at
        found = await self._session(
            server,
            f"print(inside.told(servers[{server!r}].ask(*json.loads({asked!r})), {file!r}))",
            within_s,
        )
        if (answer := found.get("answer")) is not None:
            return str(answer)
        if found.get("late"):
            raise NoAnswerError(f"no answer in {within_s:g} s")
        if found.get("long"):
            raise NoAnswerError(f"the result has more than {MAX_ANSWER_BYTES} bytes")
        last = str(found.get("stderr", "")).strip().splitlines()[-2:]
        said = "; ".join(line.strip() for line in last) or "without a message"
        with sandbox_losses():
            raise SandboxLost(
                f"the server {server} ended (status {found.get('ended')}): {said}",
                by_program=begun,
            )

    async def tell(self, server: str, message: str) -> None:
        """See `Transport`."""
        await self._session(
            server, f"servers[{server!r}].tell(json.loads({json.dumps(message)!r})); print('{{}}')"
        )

    def end(self) -> None:
        """See `Transport`; the sandbox is given back, and the servers end with it."""
        if self._sandbox is not None:
            self._sandbox = None
            self._sandboxes.post(self._held.aclose())

    async def _session(self, server: str, code: str, within_s: float = 0.0) -> dict[str, Any]:
        with sandbox_losses():
            written = await self._sandboxes.run(self._in_sandbox(server, code, within_s))
            if (found := read_object(written)) is None:
                # a server is a child of the session, and can write where that prints
                raise SandboxLost(f"the server {server} spoiled what was said", by_program=True)
        return found

    async def _in_sandbox(self, server: str, code: str, within_s: float) -> bytes:
        if self._is_lost:
            raise SandboxLost("the servers of this episode were ended")
        by_program = bool(self._started)
        if self._sandbox is None:
            claim = self._sandboxes.claim()
            self._sandbox = await self._held.enter_async_context(claim)
        sandbox = self._sandbox
        try:
            if not self._started:
                await sandbox.put("inside.py", _SOURCE.read_bytes())
                within = self._config.start_timeout_s
                await self._run(sandbox, _OPENING, within, by_program=False)
            if server not in self._started:
                await self._start(sandbox, server)
                self._started.add(server)
            written = await self._run(sandbox, code, within_s, by_program=by_program)
            file = (read_object(written) or {}).get("file")
            return await sandbox.get(str(file)) if file else written
        except SandboxRefused as refused:
            # of our own files: whatever stands in their way, or fills the disk, a call put there
            lost = SandboxLost(f"{sandbox.name}: {refused}", by_program=by_program)
            self._sandbox, self._is_lost = None, True
            await self._held.__aexit__(type(lost), lost, None)
            raise lost from refused
        except BaseException:
            # cancelled, or the sandbox is lost: return it to the pool with the reason
            self._sandbox, self._is_lost = None, True
            await self._held.__aexit__(*sys.exc_info())
            raise

    async def _start(self, sandbox: Sandbox, server: str) -> None:
        config = self._config.servers[server]
        if packed := self._packed.get(server):
            await sandbox.put(f"{server}.tar.gz", packed)
        told = json.dumps([server, list(config.command), config.variables])
        within = self._config.start_timeout_s
        written = await self._run(sandbox, _START.format(server, told), within, by_program=False)
        if fault := (read_object(written) or {}).get("fault"):
            raise SandboxLost(f"the server {server} cannot be started: {fault}")

    @staticmethod
    async def _run(sandbox: Sandbox, code: str, within_s: float, *, by_program: bool) -> bytes:
        result = await sandbox.python(code, timeout_s=within_s + _MARGIN_S)
        if not result.succeeded or result.truncated:
            # inside.py fails at nothing that is asked: a limit was exceeded
            raise SandboxLost(
                f"{sandbox.name}: the servers do not answer: {result.text[-500:].strip()}",
                by_program=by_program,
            )
        return result.stdout


_SOURCE = Path(inside.__file__)
_OPENING = """
import sys; sys.path.insert(0, "")
import json, inside
servers = {}
"""
_START = """
try:
    servers[{0!r}] = inside.Server(*json.loads({1!r}))
    print("{{}}")
except (OSError, ValueError, inside.tarfile.TarError) as error:
    print(json.dumps({{"fault": str(error)}}))
"""


class ProgramTransport:
    """The way to one server of the sandbox."""

    def __init__(self, programs: SandboxedPrograms, server: str) -> None:
        self._programs = programs
        self._server = server

    async def ask(self, message: str, number: int, within_s: float) -> str:
        """See `Transport`."""
        return await self._programs.ask(self._server, message, number, within_s)

    async def tell(self, message: str) -> None:
        """See `Transport`."""
        await self._programs.tell(self._server, message)

    def end(self) -> None:
        """See `Transport`."""
        self._programs.end()


def packed_files(folder: Path) -> bytes:
    """A server's folder as a compressed archive.

    Raises:
        DataError: it cannot be read, or is larger than a sandbox takes.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no folder with the files of a server")
    written = io.BytesIO()
    try:
        with tarfile.open(fileobj=written, mode="w:gz", compresslevel=1) as archive:
            archive.add(folder, arcname=".", filter=_without_caches)
    except OSError as error:
        raise DataError(f"{folder}: the files of a server cannot be read ({error})") from error
    if len(written.getvalue()) > MAX_FILE_BYTES:
        raise DataError(
            f"{folder}: more than {MAX_FILE_BYTES} bytes when compressed. Put what is large into "
            "the image of the sandbox"
        )
    return written.getvalue()


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith("__pycache__") else member


class HttpTransport:
    """Streamable HTTP: each message is a POST, answered as JSON or as a stream of events.

    A server that gives out a session id has a session for each episode.
    """

    def __init__(
        self, server: ServerConfig, environment: Mapping[str, str], endings: SessionEndings
    ) -> None:
        self._url = server.url
        self._endings = endings
        self._headers = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        if key := environment.get(server.key_variable):
            self._headers["Authorization"] = f"Bearer {key}"
        elif server.key_variable:
            raise DataError(f"{server.url}: the variable {server.key_variable} of its key is unset")
        self._session: str | None = None

    def speak(self, protocol: str) -> None:
        """Name the protocol's version in every request from now on."""
        self._headers["MCP-Protocol-Version"] = protocol

    async def ask(self, message: str, number: int, within_s: float) -> str:
        """See `Transport`."""
        try:
            async with asyncio.timeout(within_s):
                return await self._posted(message, number)
        except TimeoutError as error:
            raise NoAnswerError(f"no answer in {within_s:g} s") from error

    async def tell(self, message: str) -> None:
        """See `Transport`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_MARGIN_S):
                await self._posted(message, None)

    def end(self) -> None:
        """See `Transport`; the session is ended beside the episode."""
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
                        raise self._lost("gave out a session id that is none")
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
        """The response among the events of a stream; requests of the server are refused."""
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
        return EnvironmentLostError(f"{self._url}: {why}")


class SessionEndings:
    """Ends sessions of servers beside the episodes, and forgets those that it could not in time."""

    def __init__(self) -> None:
        self._workers = ThreadPoolExecutor(_ENDINGS, thread_name_prefix="espalier-mcp")
        self._asked: list[Future[None]] = []

    def submit(self, url: str, headers: Mapping[str, str]) -> None:
        """End the session that the headers name, soon."""
        self._asked = [one for one in self._asked if not one.done()]
        self._asked.append(self._workers.submit(_end_session, url, headers))

    def close(self) -> None:
        """Wait for what is asked for, some seconds at most."""
        wait(self._asked, timeout=_MARGIN_S)
        self._workers.shutdown(wait=False, cancel_futures=True)


def _end_session(url: str, headers: Mapping[str, str]) -> None:
    with suppress(httpx2.HTTPError):  # it forgets the session by itself, sooner or later
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
    """The data of each event of a stream."""
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
    """Read once: it takes longer than most calls."""
    return ssl.create_default_context()


def environment_variables() -> Mapping[str, str]:
    """Variables of this process, in which keys are."""
    return os.environ

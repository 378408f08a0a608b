"""HTTP client of the sandboxd in one sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

import httpx2

from espalier.sandbox.protocol import (
    ExecResult,
    Limits,
    SandboxError,
    SandboxLost,
    SandboxRefused,
    SandboxTimeout,
)
from sandboxd.wire import (
    LONGEST_FRAME_BYTES,
    MAX_FILE_BYTES,
    USE_HEADER,
    RunEnd,
    RunRequest,
    parse_frame,
)

_SERVER_TIME_S = 15.0
"""Time allowed to sandboxd beyond the program's own; then the sandbox counts as lost."""
_TRANSFER_S = 60.0
_CONNECTIONS = 32
_LONGEST_PATH_BYTES = 16 * 1024
_MESSAGE_BYTES = 500
_SNAPSHOT = re.compile(rb'\{"snapshot": ?"([0-9a-f]{1,64})"\}')
_SPACE = re.compile(rb"\s+")
_REFUSALS = frozenset({400, 404, 405, 409, 413, 429, 507})


class Token:
    """The secret token of a sandbox; the sandbox itself knows only its digest."""

    def __init__(self) -> None:
        self._secret = secrets.token_urlsafe(32)

    @property
    def sha256(self) -> str:
        """The digest that the sandbox is given."""
        return hashlib.sha256(self._secret.encode()).hexdigest()

    @property
    def header(self) -> dict[str, str]:
        """The authorization header of a request."""
        return {"Authorization": f"Bearer {self._secret}"}


def server_settings(token: Token, limits: Limits, preimport: Sequence[str]) -> dict[str, str]:
    """Return the environment variables of sandboxd, except its listening address."""
    return {
        "SANDBOXD_TOKEN_SHA256": token.sha256,
        "SANDBOXD_LIMITS": json.dumps(asdict(limits)),
        "SANDBOXD_PREIMPORT": " ".join(preimport),
    }


class SandboxClient:
    """The `Sandbox` protocol over HTTP; backends add starting and closing.

    Args:
        address: "unix:/path" or "http://host:port".

    Attributes:
        only_programs_end_it: whether only its programs and `close` can end the sandbox, so that a
            loss while a program runs is attributed to that program. A cluster has other causes,
            which it reports through `mark_lost`.
    """

    only_programs_end_it = False

    def __init__(self, name: str, limits: Limits, token: Token, address: str) -> None:
        self._name = name
        self._limits = limits
        self._waiting: set[asyncio.Timeout] = set()
        self._use = {USE_HEADER: secrets.token_hex(8)}
        """Names the current use; the sandbox refuses requests of an earlier use after a reset."""
        self.lost_because, self.lost_by_program = "", False
        self._is_closed = False
        _, is_local, path = address.partition("unix:")
        self.http = httpx2.AsyncClient(
            base_url="http://sandbox" if is_local else address,
            headers=token.header,
            timeout=None,  # `_within` limits each request as a whole
            transport=httpx2.AsyncHTTPTransport(
                uds=path or None,
                verify=False,
                trust_env=False,
                limits=httpx2.Limits(max_connections=_CONNECTIONS, keepalive_expiry=None),
            ),
        )
        """The HTTP client of the sandbox's server, with its token."""

    @property
    def name(self) -> str:
        """The sandbox's name, for messages and metrics."""
        return self._name

    @property
    def limits(self) -> Limits:
        """The sandbox's highest limits, which are also the defaults of a run."""
        return self._limits

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        limits: Limits | None = None,
    ) -> ExecResult:
        """Run a program in the workspace, with arguments as in `Sandbox.exec`."""
        run_limits = self._run_limits(limits, timeout_s)
        return await self._run(
            RunRequest(argv=tuple(argv), stdin=stdin, env=dict(env or {}), limits=run_limits)
        )

    async def python(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run code in the Python session, which keeps its names."""
        run_limits = self._run_limits(None, timeout_s)
        return await self._run(RunRequest(code=code, session=True, limits=run_limits))

    async def run_python(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        limits: Limits | None = None,
    ) -> ExecResult:
        """Run a script in an interpreter of its own."""
        run_limits = self._run_limits(limits, timeout_s)
        return await self._run(RunRequest(code=code, stdin=stdin, limits=run_limits))

    async def put(self, path: str, content: bytes) -> None:
        """Write a file of the workspace."""
        if len(content) > MAX_FILE_BYTES:
            most = f"{path!r} has {len(content)} bytes, a file has at most {MAX_FILE_BYTES}"
            raise SandboxRefused(f"{self._name}: {most}", status=413)
        answer = await self._ask("PUT", "/files", {"path": _sendable(path)}, content)
        if _SPACE.sub(b"", answer) != b'{"bytes":%d}' % len(content):
            raise SandboxLost(f"{self._name}: does not say what it wrote: {answer[:80]!r}")

    async def get(self, path: str) -> bytes:
        """Read a file of the workspace."""
        return await self._ask("GET", "/files", {"path": _sendable(path)})

    async def snapshot(self) -> str:
        """Save the files of the workspace and return a name for `reset`."""
        answer = await self._ask("POST", "/snapshot", {})
        if (found := _SNAPSHOT.fullmatch(answer)) is None:
            raise SandboxLost(f"{self._name}: no name of a snapshot: {answer[:80]!r}")
        return found[1].decode()

    async def reset(self, snapshot: str | None = None) -> None:
        """End all runs, empty every writable folder and restore a snapshot."""
        following = secrets.token_hex(8)
        query = {"next": following} | ({} if snapshot is None else {"to": snapshot})
        answer = await self._ask("POST", "/reset", query)
        to = b"null" if snapshot is None else b'"%s"' % snapshot.encode()
        if _SPACE.sub(b"", answer) != b'{"reset":%s}' % to:
            raise SandboxLost(f"{self._name}: does not say that it was reset: {answer[:80]!r}")
        self._use = {USE_HEADER: following}

    async def wait_until_ready(self, within_s: float) -> None:
        """Wait until sandboxd answers.

        Raises:
            SandboxTimeout: no answer in time.
            SandboxLost: nothing listens.
        """
        async with (
            self._within("to start", within_s, SandboxTimeout),
            self.http.stream("GET", "/healthz") as response,
        ):
            await _checked(response, self._name)

    def mark_lost(self, cause: str, *, by_program: bool = False) -> None:
        """Fail all requests in progress with SandboxLost; the first cause is reported.

        A cluster reports a loss more than once: when a pod is about to end, and when it has ended.
        """
        self.lost_by_program = self.lost_by_program if self.lost_because else by_program
        self.lost_because = self.lost_because or cause
        for timeout in self._waiting:
            if not timeout.expired():  # an expired timeout cannot be rescheduled
                timeout.reschedule(0.0)

    async def close_connections(self) -> None:
        """Close the HTTP connections; later requests raise SandboxLost."""
        self._is_closed = True
        await self.http.aclose()

    def _run_limits(self, limits: Limits | None, timeout_s: float | None) -> Limits:
        chosen = limits or self._limits
        return chosen if timeout_s is None else replace(chosen, wall_s=timeout_s)

    async def _run(self, request: RunRequest) -> ExecResult:
        within_s = request.limits.wall_s + _SERVER_TIME_S
        began = False
        try:
            async with (
                self._within("to end a run", within_s, SandboxLost),
                self.http.stream(
                    "POST", "/run", content=request.to_json(), headers=self._use
                ) as response,
            ):
                await _checked(response, self._name)
                began = True
                return await self._result(response, request.limits.output_bytes)
        except SandboxLost as error:
            if began and self.only_programs_end_it and not self.lost_because:
                raise SandboxLost(str(error), by_program=True) from error
            raise

    async def _result(self, response: httpx2.Response, most_bytes: int) -> ExecResult:
        """Read a run's frames to the end; too much output counts as a lost sandbox."""
        streams = {"stdout": bytearray(), "stderr": bytearray()}
        async for line in _lines(response):
            frame = parse_frame(line)
            if isinstance(frame, RunEnd):
                output = {name: bytes(data) for name, data in streams.items()}
                return ExecResult(**output, **asdict(frame))
            stream, data = frame
            streams[stream] += data
            if sum(map(len, streams.values())) > most_bytes:
                raise ValueError(f"more than {most_bytes} bytes of output")
        raise ValueError("the sandbox ended before the run did")

    async def _ask(
        self, method: str, path: str, query: Mapping[str, Any], content: bytes | None = None
    ) -> bytes:
        async with (
            self._within(f"{method} {path}", _TRANSFER_S, SandboxTimeout),
            self.http.stream(
                method, path, params=query, content=content, headers=self._use
            ) as response,
        ):
            await _checked(response, self._name)
            received = bytearray()
            async for data in response.aiter_bytes():
                received += data
                if len(received) > MAX_FILE_BYTES:
                    raise ValueError(f"more than {MAX_FILE_BYTES} bytes")
            return bytes(received)

    @asynccontextmanager
    async def _within(
        self, what: str, within_s: float, error_type: type[SandboxError]
    ) -> AsyncIterator[None]:
        if self.lost_because or self._is_closed:
            cause = self.lost_because or "its owner closed it"
            raise SandboxLost(f"{self._name}: {cause}", by_program=self.lost_by_program)
        try:
            async with asyncio.timeout(within_s) as timeout:
                self._waiting.add(timeout)
                try:
                    yield
                finally:
                    self._waiting.discard(timeout)
        except TimeoutError as error:
            if self.lost_because:
                raise SandboxLost(
                    f"{self._name}: {self.lost_because}", by_program=self.lost_by_program
                ) from error
            raise error_type(f"{self._name}: no answer {what} within {within_s:g} s") from error
        except (httpx2.TransportError, ValueError) as error:
            cause = self.lost_because or repr(error)
            raise SandboxLost(
                f"{self._name}: {what}: {cause}", by_program=self.lost_by_program
            ) from error


def _sendable(path: str) -> str:
    """Check that a request can carry the path, which may be any string a policy writes.

    Raises:
        SandboxRefused: the path is not valid Unicode, or too long.
    """
    try:
        size = len(path.encode())
    except UnicodeEncodeError as error:
        raise SandboxRefused(f"a path is valid Unicode, not {path[:80]!r}") from error
    if size > _LONGEST_PATH_BYTES:
        raise SandboxRefused(f"a path has at most {_LONGEST_PATH_BYTES} bytes, not {size}")
    return path


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the lines of a response.

    Raises:
        ValueError: a line is longer than any frame.
    """
    received = b""
    async for data in response.aiter_bytes():
        *lines, received = (received + data).split(b"\n")
        for line in lines:
            yield line
        if len(received) > LONGEST_FRAME_BYTES:
            raise ValueError(f"a line of more than {LONGEST_FRAME_BYTES} bytes")


async def _checked(response: httpx2.Response, name: str) -> None:
    if "content-encoding" in response.headers:  # sandboxd sends none; it could expand to any size
        raise ValueError("a compressed answer")
    if response.status_code == httpx2.codes.OK:
        return
    said = b""
    async for data in response.aiter_bytes():
        said = (said + data)[:_MESSAGE_BYTES]
        if len(said) == _MESSAGE_BYTES:
            break
    message = f"{name}: {said.decode(errors='replace')}"
    if response.status_code in _REFUSALS:
        raise SandboxRefused(message, status=response.status_code)
    raise SandboxLost(f"{message} (HTTP {response.status_code})")


@asynccontextmanager
async def cleanup_on_failure(*undo: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Call the clean-up functions in order if the block fails or is cancelled, then re-raise."""
    async with AsyncExitStack() as stack:
        for step in reversed(undo):
            stack.push_async_callback(step)
        yield
        stack.pop_all()

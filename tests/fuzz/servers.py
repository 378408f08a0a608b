"""Targets behind sockets: the endpoint, a sandbox's server, and the client of one that lies."""

import asyncio
import base64
import contextlib
import json
import random
import shutil
import tempfile
from pathlib import Path

from espalier.sandbox.client import SandboxClient, Token
from espalier.sandbox.local import LocalBackend
from espalier.sandbox.protocol import ExecResult, Limits, SandboxError
from tests.factories.tiny import tiny_tokenizer
from tests.fuzz.campaign import Target, Violation
from tests.fuzz.mutations import (
    changed_bytes,
    changed_json,
    chunked,
    request_bytes,
    written_json,
)
from tests.integration.serving.live import PacedEngine, listening_endpoint

_MAX_ANSWER_BYTES = 4 * 2**20
_CHAT = {
    "model": "tiny", "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "country"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function",
             "function": {"name": "search", "arguments": '{"query": "x"}'}}
        ]},
        {"role": "tool", "content": "y", "tool_call_id": "c1"},
    ],
    "tools": [{"type": "function", "function": {"name": "search", "description": "finds",
               "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}}],
    "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 1, "n": 1, "stop": ["q"],
}  # fmt: skip
_TEXT = {
    "model": "tiny", "prompt": "country", "max_tokens": 3, "temperature": 1.0, "logprobs": 0,
    "stop_token_ids": [5], "return_token_ids": True, "stream": True,
    "stream_options": {"include_usage": True}, "ignore_eos": True,
}  # fmt: skip
_IDS = {"model": "tiny", "prompt": [[20, 21], [22]], "max_tokens": 2, "n": 2, "echo": False}
_PATHS = (
    "/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/tiny", "/health",
    "/healthz", "/readyz", "/metrics", "/", "*", "/v1//completions", "/%00", "/v1/models/%2e%2e",
    "http://x/health", "/" + "a" * 3000, "/v1/completions?x=" + "y" * 100, "/health/",
)  # fmt: skip
_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "X")
_PLAIN_PATHS = (b"/healthz", b"/readyz", b"/metrics", b"/health")


class Answer:
    """A response, as far as it came."""

    def __init__(self, status, headers, body, *, is_whole):
        self.status, self.headers, self.body, self.is_whole = status, headers, body, is_whole


async def exchange(reader, writer, sent, *, method):
    """Send bytes, and read the first answer that is none of status 1xx; None where none comes.

    Raises:
        Violation: what comes is not HTTP.
    """
    sending = asyncio.create_task(_send(writer, sent))
    try:
        while (answer := await _response(reader, is_head=method == b"HEAD")) is not None:
            if answer.status >= 200:
                return answer
    finally:
        sending.cancel()
        writer.transport.abort()
        await asyncio.gather(sending, return_exceptions=True)


async def _send(writer, sent):
    with contextlib.suppress(OSError):
        writer.write(sent)
        await writer.drain()


async def _response(reader, *, is_head):
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, OSError) as error:
        partial = getattr(error, "partial", b"")
        if partial:
            raise Violation(f"half a response: {partial[:200]!r}") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise Violation("an endless head") from error
    line, *rest = head[:-4].split(b"\r\n")
    version, status, _ = [*line.split(b" ", 2), b"", b""][:3]
    if not version.startswith(b"HTTP/1.") or not status.isdigit() or len(status) != 3:
        raise Violation(f"no status line: {line[:200]!r}")
    headers = {}
    for one in rest:
        name, colon, value = one.partition(b":")
        if not colon:
            raise Violation(f"no header: {one[:200]!r}")
        headers[name.lower()] = value.strip()
    if is_head or int(status) < 200:
        return Answer(int(status), headers, b"", is_whole=True)
    try:
        body = await _body(reader, headers)
    except (asyncio.IncompleteReadError, OSError, ValueError):
        return Answer(int(status), headers, b"", is_whole=False)
    return Answer(int(status), headers, body, is_whole=True)


async def _body(reader, headers):
    if b"content-length" in headers:
        return await reader.readexactly(int(headers[b"content-length"]))
    if headers.get(b"transfer-encoding") != b"chunked":
        return await reader.read()  # until the server closes
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
        if len(body) > _MAX_ANSWER_BYTES:
            raise Violation("an endless answer")
    await reader.readexactly(2)
    return body


class Endpoint(Target):
    """The endpoint as it is served, over a quick engine; its deadlines are short."""

    name = "endpoint"
    at_once = 64
    case_s = 10.0

    def make(self, dice):
        """A request, nearly one of the API."""
        value = dice.choice((_CHAT, _TEXT, _IDS))
        target = "/v1/chat/completions" if value is _CHAT else "/v1/completions"
        method = "POST"
        if dice.random() < 0.8:
            value = changed_json(dice, value)
        body = written_json(dice, value)
        if dice.random() < 0.1:
            method, target = dice.choice(_METHODS), dice.choice(_PATHS)
        if dice.random() < 0.1:
            body = changed_bytes(dice, body)
        sent = request_bytes(dice, method, target, body)
        return changed_bytes(dice, sent) if dice.random() < 0.15 else sent

    async def run(self, case):
        """See `Target`."""
        reader, writer = await asyncio.open_connection(*self._where, limit=2**20)
        method, target = _asked(case)
        answer = await exchange(reader, writer, case, method=method)
        if answer is None:
            if case.strip(b"\r\n") and b"\n\r\n" not in case and b"\n\n" not in case:
                raise Violation("a connection that said something was closed without an answer")
            if case:
                raise Violation("a request was not answered")
            return "closed"
        _expect_answer(answer, target)
        return str(answer.status)

    async def check(self):
        """See `Target`."""
        for path in ("/healthz", "/readyz", "/metrics"):
            answer = await self._ask("GET", path, b"")
            if answer.status != 200:
                raise Violation(f"{path}: {answer.status}")
        answer = await self._ask("POST", "/v1/completions", json.dumps(_IDS).encode())
        if answer.status != 200 or len(json.loads(answer.body)["choices"]) != 4:
            raise Violation(f"{answer.status}: {answer.body[:300]!r}")

    async def _ask(self, method, path, body):
        reader, writer = await asyncio.open_connection(*self._where, limit=2**20)
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        sent = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        answer = await exchange(reader, writer, sent, method=method.encode())
        if answer is None:
            raise Violation(f"{path}: no answer")
        return answer

    @contextlib.asynccontextmanager
    async def opened(self):
        """See `Target`."""
        # short, but longer than this process, which has both ends, stands still on a busy machine:
        # 2.3 s were seen, and a client that could not yet speak was then closed upon
        quick = {"head_timeout_s": 5.0, "body_timeout_s": 5.0, "idle_timeout_s": 5.0}
        with listening_endpoint(
            PacedEngine(rows=16, token_s=0.0), tokenizer=tiny_tokenizer(), rows=16, **quick
        ) as client:
            self._where = client.base_url.host, client.base_url.port
            yield self


def _asked(case):
    """Method and path of the request that the bytes begin with."""
    method, _, rest = case.lstrip(b"\r\n").partition(b"\n")[0].partition(b" ")
    return method, rest.partition(b" ")[0].partition(b"?")[0]


def _expect_answer(answer, target):
    """An error object of OpenAI's API, or an answer of it.

    Raises:
        Violation: it is neither.
    """
    if not answer.is_whole:
        raise Violation(f"status {answer.status}, and an answer that breaks off")
    if answer.status == 500 or answer.status not in _STATUSES:
        raise Violation(f"status {answer.status}: {answer.body[:300]!r}")
    if not answer.body:
        return  # of a HEAD
    kind = answer.headers.get(b"content-type", b"").partition(b";")[0]
    if answer.status >= 400:
        _expect_error(answer, kind)
    elif kind == b"text/event-stream":
        _expect_events(answer.body)
    elif kind == b"application/json":
        _json(answer.body)
    elif target not in _PLAIN_PATHS:
        raise Violation(f"neither JSON nor events: {answer.body[:300]!r}")


def _expect_error(answer, kind):
    error = _json(answer.body).get("error")
    if kind != b"application/json" or not isinstance(error, dict):
        raise Violation(f"no error object: {answer.body[:300]!r}")
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        raise Violation(f"no error object: {answer.body[:300]!r}")
    if answer.status in (429, 503) and b"retry-after" not in answer.headers:
        raise Violation(f"status {answer.status} without retry-after")


def _expect_events(body):
    told = [one.removeprefix(b"data: ") for one in body.split(b"\n\n") if one]
    if told[-1] != b"[DONE]" and "error" not in _json(told[-1]):
        raise Violation(f"a stream without an end: {body[-300:]!r}")
    for one in told[:-1]:
        _json(one)


_STATUSES = frozenset({200, 400, 403, 404, 405, 408, 413, 415, 429, 431, 501, 503})


def _json(body):
    try:
        found = json.loads(body)
    except ValueError as error:
        raise Violation(f"no JSON: {body[:300]!r}") from error
    return found if isinstance(found, dict) else {}


_END = {"exit_status": 0, "signal": None, "killed_by": None, "truncated": False,
        "duration_s": 0.1, "cpu_s": 0.1, "max_rss_bytes": 4096}  # fmt: skip
_OUTPUT_BYTES = 64 * 1024
_CLOSES, _STAYS, _ENDLESS = b"c", b"s", b"e"
"""What the server does behind its answer: the first byte of a case."""
_ENDLESS_BYTES = 96 * 2**20


class Frames(Target):
    """The client of a sandbox whose server lies.

    A run ends with its result or a SandboxError, soon, and takes no more output than its limit
    says: a few MiB may be on their way.
    """

    name = "frames"
    at_once = 48
    case_s = 40.0
    """A run's own time, 15 s in which its server may be slow, and a margin."""

    def make(self, dice):
        """What the server does at last, and its response."""
        stays = dice.random()
        last = _STAYS if stays < 0.0004 else _ENDLESS if stays < 0.0006 else _CLOSES
        frames = [_frame(dice) for _ in range(dice.randrange(6))]
        if dice.random() < 0.7:
            frames.append(_end_frame(dice))
        if dice.random() < 0.05:
            frames.append(_end_frame(dice))
        if dice.random() < 0.05:
            dice.shuffle(frames)
        body = b"".join(frames)
        if dice.random() < 0.25:
            body = changed_bytes(dice, body)
        status = dice.choice((200,) * 30 + (204, 301, 400, 404, 409, 413, 500, 503, 999, 100))
        lines = [f"HTTP/1.1 {status} X", "content-type: application/json"]
        kind = dice.randrange(10)
        if last == _ENDLESS:
            return last + b"HTTP/1.1 200 OK\r\n\r\n" + _frame(dice)
        if kind < 5:
            lines.append("transfer-encoding: chunked")
            body = chunked(dice, body)
        elif kind < 7:
            lines.append(f"content-length: {len(body) + dice.choice((0, 0, 0, 1, -1, 10**12))}")
        elif kind == 7:
            lines.append(dice.choice(("content-encoding: gzip", "content-length: x", "x", "a: \0")))
        sent = "\r\n".join([*lines, "", ""]).encode() + body
        return last + (changed_bytes(dice, sent) if dice.random() < 0.1 else sent)

    async def run(self, case):
        """See `Target`."""
        path = self._folder / f"{random.getrandbits(64):x}"
        taken, answering = 0, []

        async def answer(reader, writer):
            nonlocal taken
            answering.append(asyncio.current_task())
            over = (OSError, asyncio.IncompleteReadError, asyncio.CancelledError)
            with contextlib.suppress(*over):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(case[1:])
                await writer.drain()
                if case[:1] == _ENDLESS:
                    more = case.rpartition(b"\r\n\r\n")[2] * 50
                    while more and taken < _ENDLESS_BYTES:
                        writer.write(more)
                        await writer.drain()
                        taken += len(more)
                elif case[:1] == _STAYS:
                    await reader.read()
            writer.transport.abort()

        server = await asyncio.start_unix_server(answer, path)
        limits = Limits(output_bytes=_OUTPUT_BYTES, wall_s=0.5)
        client = SandboxClient("lying", limits, Token(), f"unix:{path}")
        try:
            result = await client.exec(["true"])
        except SandboxError as error:
            result = error
        finally:
            await client.close_connections()
            server.close()
            for one in answering:
                one.cancel()
            await asyncio.gather(*answering, return_exceptions=True)
            path.unlink(missing_ok=True)
        return _expect_result(result, taken)

    @contextlib.asynccontextmanager
    async def opened(self):
        """See `Target`."""
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        try:
            yield self
        finally:
            shutil.rmtree(self._folder)

    async def check(self):
        """See `Target`."""
        body = (
            b'{"stream": "stdout", "data": "aGk="}\n' + json.dumps({"end": _END}).encode() + b"\n"
        )
        if await self.run(_CLOSES + b"HTTP/1.1 200 OK\r\n\r\n" + body) != "result":
            raise Violation("an honest response is no result")


def _expect_result(result, taken):
    if taken > 16 * 2**20:
        raise Violation(f"{taken >> 20} MiB of output were taken, of at most {_OUTPUT_BYTES} bytes")
    if isinstance(result, SandboxError):
        return type(result).__name__
    if not isinstance(result, ExecResult):
        raise Violation(f"neither a result nor an error: {result!r}"[:300])
    size = len(result.stdout) + len(result.stderr)
    if size > 2 * _OUTPUT_BYTES:
        raise Violation(f"{size} bytes of output, of at most {_OUTPUT_BYTES}")
    kinds = {"exit_status": int | None, "signal": int | None, "killed_by": str | None,
             "truncated": bool, "duration_s": float | int, "cpu_s": float | int,
             "max_rss_bytes": int}  # fmt: skip
    for name, kind in kinds.items():
        if not isinstance(getattr(result, name), kind):
            raise Violation(f"{name} is {getattr(result, name)!r}"[:300])
    return "result"


def _frame(dice):
    data = base64.b64encode(dice.randbytes(dice.choice((0, 1, 30, 3000)))).decode()
    frame = {"stream": dice.choice(("stdout", "stderr")), "data": data}
    return _line(dice, frame)


def _end_frame(dice):
    return _line(dice, {"end": _END})


def _line(dice, frame):
    if dice.random() < 0.25:
        frame = changed_json(dice, frame)
    return written_json(dice, frame) + b"\n"


_CODE = {"code": "print(6*7)", "limits": {"wall_s": 2.0, "cpu_s": 2.0}}
_REQUESTS = (
    ("POST", "/run", _CODE),
    ("POST", "/run", {"argv": ["true"], "env": {"A": "b"}, "stdin": "aGk="}),
    ("POST", "/run", {"code": "x = 1", "session": True}),
    ("GET", "/healthz", {}),
    ("PUT", "/files?path=a", {"a": 1}),
    ("GET", "/files?path=a", {}),
    ("POST", "/snapshot", {}),
    ("POST", "/reset", {}),
)


class Sandboxd(Target):
    """The server inside a local sandbox, asked by somebody who has its token."""

    name = "sandboxd"
    at_once = 8
    between_checks = 200
    case_s = 60.0

    def make(self, dice):
        """A request, nearly one of the protocol; %TOKEN% stands for the token."""
        method, target, value = dice.choice(_REQUESTS)
        if dice.random() < 0.7:
            value = changed_json(dice, value)
        body = written_json(dice, value)
        if dice.random() < 0.1:
            body = changed_bytes(dice, body)
        if dice.random() < 0.05:
            target = dice.choice((*_PATHS, "/files?path=" + "../" * 50, "/files", "/reset?to=x"))
        sent = request_bytes(dice, method, target, body, [("authorization", "%TOKEN%")])
        return changed_bytes(dice, sent) if dice.random() < 0.15 else sent

    async def run(self, case):
        """See `Target`."""
        sent = case.replace(b"%TOKEN%", self._token)
        reader, writer = await asyncio.open_unix_connection(self._path, limit=2**20)
        try:
            async with asyncio.timeout(_SILENCE_S):
                answer = await exchange(reader, writer, sent, method=_asked(case)[0])
        except TimeoutError:
            return "waits for more, or runs"
        if answer is None:
            return "closed"
        if answer.status >= 500 and answer.status != 507:
            raise Violation(f"status {answer.status}: {answer.body[:300]!r}")
        return str(answer.status)

    async def check(self):
        """See `Target`."""
        await asyncio.sleep(_SILENCE_S)  # for what the last cases left running
        try:
            result = await self._sandbox.run_python("print(6*7)")
        except SandboxError as error:
            raise Violation(str(error)) from error
        if result.stdout != b"42\n":
            raise Violation(f"6*7 is {result!r}"[:500])

    @contextlib.asynccontextmanager
    async def opened(self):
        """See `Target`."""
        self._sandbox = await LocalBackend().create()
        self._token = self._sandbox.http.headers["authorization"].encode()
        self._path = str(self._sandbox._process.socket_path)  # nothing else tells it
        try:
            yield self
        finally:
            await self._sandbox.close()


_SILENCE_S = 2.5
"""A run of these requests takes at most 2 s; a request that is not whole has no answer."""

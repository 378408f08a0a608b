"""Stands between a client and its sandboxd: passes on, delays, drips, breaks off, or lies."""

import asyncio
import base64
import contextlib
import json
import re

_LONGEST_BODY = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_END = {
    "exit_status": 0,
    "signal": None,
    "killed_by": None,
    "truncated": False,
    "duration_s": 0.1,
    "cpu_s": 0.1,
    "max_rss_bytes": 1,
}
_MOST_ENDLESS_BYTES = 256 * 2**20
"""The client has to break off long before."""
_MOST_KEPT_BYTES = 64 * 1024
MISCHIEF = {
    "slow": 30,
    "drip": 10,
    "late": 20,
    "stall": 0.5,
    "cut": 10,
    "hang up": 8,
    "garbage": 6,
    "garbled frames": 8,
    "wrong types": 8,
    "endless": 2,
    "nothing": 8,
    "status": 8,
    "two ends": 6,
    "wrong probe": 6,
    "another's answer": 8,
}
"""What is done to a request, and how often relative to the others."""
_IN_ORDER = ("two ends", "wrong probe", "another's answer")
"""Answers that a run may have; a file may have any."""
_WRONG_PROBES = ("[]", "{}", "3", "null", '"x"', "not json", "[" * 10_000, '{"variables": 1}')
_WRONG_FRAMES = (
    b"[]\n",
    b'{"end": []}\n',
    b'{"end": {"exit_status": "0"}}\n',
    b'{"stream": 5, "data": "aGk="}\n',
    b'{"stream": "stdout", "data": 7}\n',
    b'{"stream": "stdin", "data": "aGk="}\n',
    b'{"snapshot": 7}',
    b'{"snapshot": "../../x"}',
    b"[" * 100_000 + b"\n",
)
_STATUSES = (100, 204, 206, 302, 400, 404, 409, 429, 500, 503, 507, 999)


class Proxy:
    """A listening socket of its own in front of one sandbox's.

    Attributes:
        forged: answers that are in order and false: no client could tell.
    """

    def __init__(self, world, path, behind):
        self._world, self.path, self._behind = world, path, behind
        self._server, self._tasks = None, set()
        self.forged = 0

    async def open(self):
        self._server = await asyncio.start_unix_server(self._meet, self.path)

    async def close(self):
        if self._server is not None:
            self._server.close()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            with contextlib.suppress(OSError):
                self.path.unlink()

    async def _meet(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except asyncio.CancelledError:
            pass  # the proxy is closed; asyncio's streams would report it as unhandled
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader, writer):
        """One request a connection: what the sandbox answers is passed on up to its end."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LONGEST_BODY.search(head)
        body = await reader.readexactly(int(length[1])) if length else b""
        line = head.split(b"\r\n", 1)[0].decode()
        kind, world = "honest", self._world
        world.counted["proxied requests"] += 1
        if not world.is_calm and world.rng.random() < world.plan.mischief:
            kind = world.rng.choices(tuple(MISCHIEF), tuple(MISCHIEF.values()))[0]
            world.count(f"proxy {kind}", f"{self.path.name} {line}")
        request = head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body
        if kind in ("honest", "slow", "drip", "late", "cut"):
            await self._pass(kind, line, request, reader, writer)
        elif kind == "stall":
            await reader.read()
        elif kind != "hang up":
            await self._lie(kind, line, writer)

    async def _pass(self, kind, line, request, reader, writer):
        rng = self._world.rng
        pause_s = rng.uniform(0.02, 1.5) if kind in ("slow", "late") else 0.0
        if kind == "late":  # on its way for a while, whatever becomes of the client
            await asyncio.sleep(pause_s)
        elif pause_s and await _left(reader, pause_s):
            return
        behind, forward = await asyncio.open_unix_connection(self._behind)
        try:
            forward.write(request)
            answering = asyncio.create_task(self._answer(kind, line, behind, writer))
            leaving = asyncio.create_task(reader.read())
            try:
                await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (answering, leaving):
                    task.cancel()
                await asyncio.gather(answering, leaving, return_exceptions=True)
        finally:
            forward.transport.abort() if kind != "late" else forward.close()

    async def _answer(self, kind, line, behind, writer):
        rng, passed, kept = self._world.rng, 0, b""
        most = rng.randrange(400) if kind == "cut" else None
        while data := await behind.read(_MOST_KEPT_BYTES):
            if kind == "slow":
                await asyncio.sleep(rng.uniform(0.0, 0.5))
            if kind == "drip":
                step = max(1, len(data) // 40)
                for place in range(0, len(data), step):
                    writer.write(data[place : place + step])
                    await asyncio.sleep(0.02)
            else:
                writer.write(data if most is None else data[: most - passed])
            await writer.drain()
            passed += len(data)
            kept = (kept + data)[: _MOST_KEPT_BYTES + 1]
            if most is not None and passed >= most:
                return
        if "/run" in line and len(kept) <= _MOST_KEPT_BYTES:
            self._world.heard = kept

    async def _lie(self, kind, line, writer):
        rng = self._world.rng
        run = "/run" in line
        match kind:
            case "garbage":
                answer = rng.randbytes(rng.randrange(1, 4000))
            case "garbled frames":
                answer = _chunked(rng.randbytes(300) + b"\n" + _frame("stdout", b"x")[:-5] + b"\n")
            case "wrong types":
                answer = _chunked(rng.choice(_WRONG_FRAMES))
            case "nothing":
                answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
            case "status":
                status = rng.choice(_STATUSES)
                answer = f"HTTP/1.1 {status} So\r\nContent-Length: 2\r\n\r\nno".encode()
            case "endless":
                return await self._say_endlessly(run, writer)
            case "two ends":
                answer = _chunked(_frame("stdout", b"forged") + 2 * _end())
            case "wrong probe":
                answer = _chunked(_frame("stdout", rng.choice(_WRONG_PROBES).encode()) + _end())
            case _:
                answer = self._world.heard or _chunked(_end())
        if (run and kind in _IN_ORDER) or (line.startswith("GET /files") and kind != "garbage"):
            self.forged += 1
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        return None

    async def _say_endlessly(self, run, writer):
        frame = _frame("stdout", b"x" * 48_000) if run else b"x" * 64_000
        data = f"{len(frame):x}\r\n".encode() + frame + b"\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(_MOST_ENDLESS_BYTES // len(data)):
            writer.write(data)
            await writer.drain()
        self._world.break_rule("memory: a client took 256 MiB of an answer without an end")


async def _left(reader, within_s):
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await reader.read()
            return True
    return False


def _frame(stream, data):
    return json.dumps({"stream": stream, "data": base64.b64encode(data).decode()}).encode() + b"\n"


def _end():
    return json.dumps({"end": _END}).encode() + b"\n"


def _chunked(body):
    size = f"{len(body):x}\r\n".encode()
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + body + b"\r\n0\r\n\r\n"

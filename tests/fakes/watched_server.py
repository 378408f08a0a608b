"""An API server with objects that can be watched, on loopback, and every way in which it fails.

async with WatchedServer().serving() as server:
    server.behaves = "gone"        # from the next request on

lists and streams                  well
takes the request, says nothing    silent
begins a watch, then says nothing  stalls
ends every watch at once           closes, or says_and_closes: with something new in each
has forgotten the version          gone (HTTP 410), or gone_event (an ERROR event)
is overloaded                      busy (429 with Retry-After), or busy_event
fails                              fails (500)
sends what is no event             garbage, or endless (a line without end)
"""

import asyncio
import contextlib
import itertools
import json
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

from kubernetes.client import Configuration

RETRY_AFTER_S = 3
_GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
_BUSY = {
    "kind": "Status",
    "code": 429,
    "message": "storage is (re)initializing",
    "details": {"retryAfterSeconds": RETRY_AFTER_S},
}
ONE_ENDLESS_PIECE = b"x" * 2**20
STORMS = (
    "closes", "says_and_closes", "gone", "gone_event", "busy", "busy_event", "fails", "garbage",
    "endless",
)  # fmt: skip


class WatchedServer:
    """The server of one kind of objects.

    Attributes:
        behaves: see the module.
        requests: of each request, "list" or "watch" and the time of the event loop.
        queries: of each watch.
    """

    def __init__(self):
        self.behaves = "well"
        self.requests = []
        self.queries = []
        self.objects = {}
        self._versions = itertools.count(1)
        self._version = "0"
        self._history = []
        self._changed = asyncio.Condition()
        self._tasks = set()

    @asynccontextmanager
    async def serving(self):
        """Serve on the running event loop."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def settings(self, port=None):
        """Of a client, which may come by a proxy's port."""
        return Configuration(host=f"http://127.0.0.1:{port or self.port}")

    def count(self, kind):
        return sum(kind == asked for asked, _ in self.requests)

    async def put(self, name):
        """Add or change an object."""
        await self._tell("MODIFIED" if name in self.objects else "ADDED", name)

    async def remove(self, name):
        await self._tell("DELETED", name)

    async def _tell(self, kind, name):
        self._version = str(next(self._versions))
        found = {"metadata": {"name": name, "resourceVersion": self._version}}
        if kind == "DELETED":
            self.objects.pop(name)
        else:
            self.objects[name] = found
        async with self._changed:
            self._history.append({"type": kind, "object": found})
            self._changed.notify_all()

    def _accept(self, reader, writer):
        task = asyncio.ensure_future(self._converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    await self._answer(head.split()[1].decode(), writer)
            finally:
                writer.close()

    async def _answer(self, target, writer):
        query = {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}
        is_watch = "watch" in query
        now = asyncio.get_running_loop().time()
        self.requests.append(("watch" if is_watch else "list", now))
        if self.behaves == "silent":
            await asyncio.sleep(3600)
        if self.behaves in ("busy", "fails"):
            status = "429 Too Many Requests" if self.behaves == "busy" else "500 Internal Server"
            writer.write(_response(status, b'{"message": "no"}', retry=self.behaves == "busy"))
        elif not is_watch:
            listed = {
                "metadata": {"resourceVersion": self._version},
                "items": list(self.objects.values()),
            }
            writer.write(_response("200 OK", json.dumps(listed).encode()))
        elif self.behaves == "gone":
            writer.write(_response("410 Gone", json.dumps(_GONE).encode()))
        else:
            self.queries.append(query)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await self._watch(query, writer)
            writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _watch(self, query, writer):
        match self.behaves:
            case "closes":
                return
            case "says_and_closes":
                await self._events_after(int(query["resourceVersion"]), writer)
                self._version = str(next(self._versions))
                await _line(writer, self._bookmark())
            case "gone_event":
                await _line(writer, {"type": "ERROR", "object": _GONE})
            case "busy_event":
                await _line(writer, {"type": "ERROR", "object": _BUSY})
            case "garbage":
                await _piece(writer, b'{"type": "ADDED", "object": [1, 2\n')
            case "endless":
                while not writer.is_closing():
                    await _piece(writer, ONE_ENDLESS_PIECE)
            case "stalls":
                await self._events_after(int(query["resourceVersion"]), writer)
                await _line(writer, self._bookmark())
                await asyncio.sleep(3600)
            case _:
                await self._stream(query, writer)

    async def _stream(self, query, writer):
        """Events after the version, and a bookmark before the end that the client asked for."""
        version = int(query["resourceVersion"])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(query["timeoutSeconds"])), self._changed:
                while self.behaves == "well":
                    await self._events_after(version, writer)
                    version = int(self._version)
                    await self._changed.wait()
        if query.get("allowWatchBookmarks"):
            await _line(writer, self._bookmark())

    async def _events_after(self, version, writer):
        for event in tuple(self._history):
            if int(event["object"]["metadata"]["resourceVersion"]) > version:
                await _line(writer, event)

    def _bookmark(self):
        return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": self._version}}}


class FreezingProxy:
    """Passes bytes on, until it is frozen: then its connections stay open and say nothing more.

    So does a network that forgot a connection, or a load balancer whose server is gone. The kernel
    here goes on acknowledging, so only a deadline notices.

    Attributes:
        connections: times at which one was accepted.
    """

    def __init__(self, port):
        self._target = port
        self.connections = []
        self._tasks, self._pumps = set(), set()

    @asynccontextmanager
    async def serving(self):
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def freeze(self):
        """Freeze the connections that there are; later ones pass."""
        for pump in self._pumps:
            pump.cancel()

    def _accept(self, reader, writer):
        self.connections.append(asyncio.get_running_loop().time())
        task = asyncio.ensure_future(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader, writer):
        there, onward = await asyncio.open_connection("127.0.0.1", self._target)
        pumps = {
            asyncio.ensure_future(_pump(*ends)) for ends in ((reader, onward), (there, writer))
        }
        self._pumps |= pumps
        try:
            await asyncio.wait(pumps, return_when="FIRST_COMPLETED")
            if any(pump.cancelled() for pump in pumps):
                await asyncio.sleep(3600)
        finally:
            self._pumps -= pumps
            for pump in pumps:
                pump.cancel()
            writer.close()
            onward.close()


async def _pump(reader, writer):
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()


def _response(status, body, *, retry=False):
    header = f"Retry-After: {RETRY_AFTER_S}\r\n" if retry else ""
    head = f"HTTP/1.1 {status}\r\n{header}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _line(writer, event):
    await _piece(writer, json.dumps(event).encode() + b"\n")


async def _piece(writer, content):
    writer.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
    await writer.drain()

"""Server connections with a bounded number of places, deadlines, and JSON refusals.

uvicorn's h11 protocol parses requests and frames answers. It has no deadline before the first
request and none for writing, and it refuses as plain text; this module adds all three. The standing
of a connection says what the server is waiting for, and how long it waits:

    OPENING   TLS, then the head of a request     serving.head_timeout_s
    SENDING   the body of a request               serving.body_timeout_s
    BUSY      the application to answer           serving.request_timeout_s, kept by the application
    IDLE      the next request                    serving.idle_timeout_s
    LEAVING   the client to disconnect            2 s

A client that does not read its answer is dropped after serving.write_timeout_s in any standing.
When all places are taken, the connection that has waited longest is closed: idle ones first, one
whose request is being answered never.
"""

from __future__ import annotations

import asyncio
import enum
import json
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any, Protocol

import h11
from starlette.types import Scope
from uvicorn import Config
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES
from uvicorn.server import ServerState

from espalier.config import ServingConfig
from espalier.wire.requests import Refusal
from sandboxd.framing import StrictProtocol

RESERVED_PLACES = 16
"""Places beyond `serving.max_connections`, kept for a kubelet's probes and similar requests."""
MAX_HEAD_BYTES = 16 * 1024
"""Largest request line plus headers; a larger head is refused with status 431."""
_LINGER_S = 2.0
"""How long a refused client may keep sending. Closing a socket that has unread bytes resets it, and
the client would lose the answer that says why it was refused."""
_BODY_GRACE_S = 1.0
"""Added to `body_timeout_s`, so that the application, which reads the body, answers first."""
_UNSENT_BYTES = 128 * 1024
"""Bytes that the kernel buffers for a client that does not read; the rest is buffered here."""
_HEAD_TOO_LARGE = 431
_CROWDED, _DROP = "espalier.crowded", "espalier.drop"
"""Keys in the state of a request."""


class Standing(enum.Enum):
    """What the server waits for on a connection; the module docstring has a table."""

    IDLE = "idle"
    LEAVING = "leaving"
    OPENING = "head"
    SENDING = "body"
    BUSY = "busy"


_SHED_ORDER = (Standing.IDLE, Standing.LEAVING, Standing.OPENING, Standing.SENDING)


class ConnectionCounts(Protocol):
    """Counters that a server keeps about its connections."""

    def count_closed(self, cause: str) -> None:
        """Count a connection that was closed because its client was silent or slow."""
        ...

    def count_request(self, route: str, status: int) -> None:
        """Count a request that was refused before it reached the application."""
        ...


class Places:
    """All connections of a server, grouped by standing, oldest first within each group."""

    def __init__(self, config: ServingConfig, metrics: ConnectionCounts) -> None:
        self.config = config
        self.metrics = metrics
        self._standing: dict[Connection, Standing] = {}
        self._by_standing: dict[Standing, dict[Connection, None]] = {one: {} for one in Standing}

    @property
    def open(self) -> int:
        """Number of open connections."""
        return len(self._standing)

    @property
    def is_crowded(self) -> bool:
        """Whether requests that are being answered take all places."""
        return len(self._by_standing[Standing.BUSY]) >= self.config.max_connections

    def enter(self, connection: Connection) -> None:
        """Register a new connection; close a waiting one if no place is free."""
        self.move(connection, Standing.OPENING)
        if len(self._standing) <= self.config.max_connections + RESERVED_PLACES:
            return
        waiting = (one for standing in _SHED_ORDER for one in self._by_standing[standing])
        shed = next(waiting)  # never empty: the new connection itself is OPENING
        self.metrics.count_closed("shed")
        shed.shed()

    def move(self, connection: Connection, standing: Standing) -> None:
        """Record the new standing of a connection."""
        self.leave(connection)
        self._standing[connection] = standing
        self._by_standing[standing][connection] = None

    def leave(self, connection: Connection) -> None:
        """Forget a connection; do nothing if it is unknown."""
        standing = self._standing.pop(connection, None)
        if standing is not None:
            del self._by_standing[standing][connection]

    def close_opening(self) -> None:
        """Close connections that have not sent a request yet; called when the server shuts down."""
        for connection in list(self._by_standing[Standing.OPENING]):
            connection.drop()


class Connection(StrictProtocol):
    """One HTTP connection with a place and a deadline (see the module docstring)."""

    def __init__(
        self, config: Config, server_state: ServerState, places: Places, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(config, server_state, app_state={_DROP: self.drop})
        self._places = places
        self._config = places.config
        self._tls = tls
        self._securing: asyncio.Task[None] | None = None
        self._standing = Standing.OPENING
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._has_begun = False
        """Whether HTTP has started: immediately without TLS, after the handshake with it."""
        self._early = bytearray()
        """Bytes that arrived with the end of the TLS handshake, before `_secure` was resumed."""
        self._has_bytes = False
        """Whether part of the next request has arrived."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place and start the deadline, then start HTTP or the TLS handshake."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        connected: socket.socket = transport.get_extra_info("socket")
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self._stand(Standing.OPENING, self._config.head_timeout_s)
        self._places.enter(self)
        if transport.is_closing():
            return
        if self._tls is None:
            self._begin(transport)
        else:
            transport.pause_reading()
            self._securing = self.loop.create_task(self._secure(transport, self._tls))

    async def _secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Run the TLS handshake; the deadline for the request head covers it too."""
        try:
            secured = await self.loop.start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=self._config.head_timeout_s,
            )
        except OSError:  # failed handshake, a client that left, or the timeout
            secured = None
        if secured is None or secured.is_closing():
            self._forget()
        else:
            self._begin(secured)

    def _begin(self, transport: asyncio.Transport) -> None:
        self._has_begun = True
        super().connection_made(transport)
        if self._early:
            self.data_received(bytes(self._early))
            self._early.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back and cancel a handshake that is still running."""
        self._forget()
        if self._has_begun:
            super().connection_lost(exc)
        elif self._securing is not None:
            self._securing.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; discard them after the last answer."""
        if self._standing is Standing.LEAVING or self.transport.is_closing():
            return
        if not self._has_begun:
            self._early += data
            return
        if self._standing is Standing.IDLE:
            self._stand(Standing.OPENING, self._config.head_timeout_s)
        self._has_bytes = True
        self.conn.receive_data(data)
        self.handle_events()

    def handle_events(self) -> None:
        """Start the request once its head is complete, and pass on its body."""
        self.app_state[_CROWDED] = self._places.is_crowded
        super().handle_events()
        if self.transport.is_closing() or self._standing is Standing.LEAVING:
            return
        if self.cycle is None or self.cycle.response_complete:
            return  # the head is incomplete
        if not isinstance(self.cycle.transport, _Outgoing):
            outgoing: Any = _Outgoing(self)  # has every method that a cycle calls
            self.cycle.transport = outgoing
        # an answer that starts before the body is complete closes the connection
        closes = [CLOSE_HEADER] if self.cycle.more_body else []
        self.cycle.default_headers = [*self.server_state.default_headers, *closes]
        if not self.cycle.more_body:
            self._stand(Standing.BUSY, None)
        elif self._standing is not Standing.SENDING:
            self._stand(Standing.SENDING, self._config.body_timeout_s + _BODY_GRACE_S)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection to a WebSocket, which keeps the place until `end_socket`."""
        self._stand(Standing.BUSY, None)
        super().handle_websocket_upgrade(event)

    def end_socket(self) -> None:
        """Give the place back: the WebSocket that took over this connection has ended."""
        self._forget()

    def finish(self) -> None:
        """Close after a complete answer; linger if the client is still sending."""
        if self.cycle.more_body:
            self._linger()
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP; uvicorn calls this while handling h11's exception."""
        raised = sys.exception()
        status = getattr(raised, "error_status_hint", 400)
        if status == _HEAD_TOO_LARGE:
            told = f"the head of the request has more than {MAX_HEAD_BYTES} bytes"
        else:
            told = "not a valid HTTP/1.1 request"  # h11's text quotes the request, keys included
        self._refuse(Refusal(status, told))

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to leave."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._stand(Standing.LEAVING, self._config.write_timeout_s)
            return
        if not (self.conn.our_state is h11.DONE and self.conn.their_state is h11.DONE):
            self._linger()  # the rest of the body is not needed
            return
        self.conn.start_next_cycle()
        self._has_bytes = bool(self.conn.trailing_data[0])
        if self._has_bytes:
            self._stand(Standing.OPENING, self._config.head_timeout_s)
        else:
            self._stand(Standing.IDLE, self._config.idle_timeout_s)
        self.flow.resume_reading()
        self.handle_events()

    def pause_writing(self) -> None:
        """Start the timer for a client that does not read."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self._config.write_timeout_s, self._give_up_writing)

    def resume_writing(self) -> None:
        """Stop the timer: the client reads again."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def shutdown(self) -> None:
        """Finish the answer in progress and close; uvicorn calls this when the server stops."""
        if self.cycle is None or self.cycle.response_complete:
            self.drop()
        else:
            self.cycle.keep_alive = False

    def shed(self) -> None:
        """Close to free the place; answer 503 if part of a request has arrived."""
        if self._has_bytes and self._standing in (Standing.OPENING, Standing.SENDING):
            self._write_refusal(
                Refusal(503, "too many connections, and this one was slow; try again in a moment")
            )
        self.drop()

    def drop(self) -> None:
        """Close now and discard what the client has not read."""
        self._forget()
        self._end_cycle()
        if self._securing is not None and not self._has_begun:
            self._securing.cancel()
        if not self._has_begun or self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _stand(self, standing: Standing, within_s: float | None) -> None:
        self._standing = standing
        self._places.move(self, standing)
        self._set_deadline(within_s)

    def _set_deadline(self, within_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if within_s is not None:
            self._deadline = self.loop.call_later(within_s, self._expire)

    def _expire(self) -> None:
        self._places.metrics.count_closed(self._standing.value)
        if self._standing is Standing.OPENING and self._has_bytes and self._has_begun:
            head_s = self._config.head_timeout_s
            self._refuse(Refusal(408, f"the head of the request did not arrive in {head_s:g} s"))
        elif self._standing is Standing.SENDING:
            body_s = self._config.body_timeout_s
            self._refuse(Refusal(408, f"the body did not arrive in {body_s:g} s"))
        else:  # no request has arrived, or the answer is complete
            self.drop()

    def _give_up_writing(self) -> None:
        self._places.metrics.count_closed("write")
        self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        self._write_refusal(refusal)
        self._linger()

    def _write_refusal(self, refusal: Refusal) -> None:
        """Write an OpenAI-style error if no answer has begun; tell the application to stop."""
        self._places.metrics.count_request("other", refusal.status)
        is_head = self._end_cycle() and self.scope["method"] == "HEAD"
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = json.dumps(refusal.body()).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **refusal.headers,
        }
        response = h11.Response(
            status_code=refusal.status,
            headers=[
                *self.server_state.default_headers,
                *((name.encode(), value.encode()) for name, value in headers.items()),
            ],
            reason=STATUS_PHRASES[refusal.status],
        )
        said = [response, *([] if is_head else [h11.Data(data=body)]), h11.EndOfMessage()]
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in said))

    def _end_cycle(self) -> bool:
        """Tell the application that nothing more is sent; return whether it was answering."""
        if self.cycle is None or self.cycle.response_complete:
            return False
        self.cycle.disconnected = True
        self.cycle.waiting_for_100_continue = False  # else reading the body would send it
        self.cycle.message_event.set()
        return True

    def _linger(self) -> None:
        """Close our side, and read for `_LINGER_S` more so that the client gets the answer."""
        self._stand(Standing.LEAVING, _LINGER_S)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            try:
                self.transport.write_eof()
            except OSError:  # the client is gone; asyncio reports that later
                self.drop()

    def _forget(self) -> None:
        self._set_deadline(None)
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        self._places.leave(self)


class _Outgoing:
    """The transport uvicorn writes to; `close` lingers while the client is still sending."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def write(self, data: bytes) -> None:
        """Write to the connection's transport."""
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        """Whether the connection's transport is closing."""
        return self._connection.transport.is_closing()

    def close(self) -> None:
        """Close through `Connection.finish`."""
        self._connection.finish()


def is_crowded(scope: Scope) -> bool:
    """Return whether all places were taken when the request came; probes are answered anyway."""
    state: dict[str, Any] = scope.get("state", {})
    return bool(state.get(_CROWDED))


def drop_connection(scope: Scope) -> None:
    """Close the connection of a request whose client does not read its answer."""
    drop: Callable[[], None] | None = scope.get("state", {}).get(_DROP)
    if drop is not None:
        drop()


def connection_factory(
    config: Config,
    server_state: ServerState,
    places: Places,
    tls: Callable[[], ssl.SSLContext | None],
) -> Callable[[], Connection]:
    """Return the function that asyncio calls for each connection it accepts."""
    return lambda: Connection(config, server_state, places, tls())

"""Connections of a server: places, deadlines, and refusals of what is no request.

uvicorn's protocol over h11 parses requests and frames answers. It has no deadline before the first
request and none for writing, and it refuses as text. Both are decided here. Where a connection
stands says what it is waited for, and how long:

    OPENING   TLS, then the head of a request     serving.head_timeout_s
    SENDING   the body of a request               serving.body_timeout_s
    BUSY      the answer is being made            serving.request_timeout_s, by the application
    IDLE      the next request                    serving.idle_timeout_s
    LEAVING   the client, after its last answer   2 s

A client that does not read what it is sent is dropped after serving.write_timeout_s wherever it
stands. When places run out, the connection that has been waited for longest is closed: an idle one
first, one that is answered never.
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
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from espalier.config import ServingConfig
from espalier.wire.requests import Refusal

RESERVED_PLACES = 16
"""Connections beyond `serving.max_connections`, for a kubelet's probes and the like."""
MAX_HEAD_BYTES = 16 * 1024
"""Of a request's line and headers; more is refused with status 431."""
_LINGER_S = 2.0
"""How long a refused client may go on sending. A socket that is closed over bytes that nobody read
is reset, and the client loses the answer that says why."""
_BODY_GRACE_S = 1.0
"""Beyond `body_timeout_s`: the application, which reads the body, answers first."""
_UNSENT_BYTES = 128 * 1024
"""What the kernel keeps for a client that does not read; the rest is counted here."""
_HEAD_TOO_LARGE = 431
_CROWDED, _DROP = "espalier.crowded", "espalier.drop"
"""Entries of a request's state."""


class Standing(enum.Enum):
    """What a connection is waited for; see the module."""

    IDLE = "idle"
    LEAVING = "leaving"
    OPENING = "head"
    SENDING = "body"
    BUSY = "busy"


_SHED_ORDER = (Standing.IDLE, Standing.LEAVING, Standing.OPENING, Standing.SENDING)


class ConnectionCounts(Protocol):
    """What a server counts of its connections."""

    def count_closed(self, cause: str) -> None:
        """Count a connection that was closed because its client was silent or slow."""
        ...

    def count_request(self, route: str, status: int) -> None:
        """Count a request that was refused before it reached the application."""
        ...


class Places:
    """All connections of a server by their standing, each standing oldest first."""

    def __init__(self, config: ServingConfig, metrics: ConnectionCounts) -> None:
        self.config = config
        self.metrics = metrics
        self._standing: dict[Connection, Standing] = {}
        self._by_standing: dict[Standing, dict[Connection, None]] = {one: {} for one in Standing}

    @property
    def open(self) -> int:
        """Open connections."""
        return len(self._standing)

    @property
    def is_crowded(self) -> bool:
        """Whether all places are taken by requests that are being answered."""
        return len(self._by_standing[Standing.BUSY]) >= self.config.max_connections

    def enter(self, connection: Connection) -> None:
        """Give a new connection a place, that of another one where none is free."""
        self.move(connection, Standing.OPENING)
        if len(self._standing) <= self.config.max_connections + RESERVED_PLACES:
            return
        waiting = (one for standing in _SHED_ORDER for one in self._by_standing[standing])
        shed = next(waiting)  # there is one: the new connection itself is waited for
        self.metrics.count_closed("shed")
        shed.shed()

    def move(self, connection: Connection, standing: Standing) -> None:
        """Note where a connection stands from now on."""
        self.leave(connection)
        self._standing[connection] = standing
        self._by_standing[standing][connection] = None

    def leave(self, connection: Connection) -> None:
        """Forget a connection; one that is not known is none."""
        standing = self._standing.pop(connection, None)
        if standing is not None:
            del self._by_standing[standing][connection]

    def close_opening(self) -> None:
        """Close the connections that have sent no request yet: the server is about to end."""
        for connection in list(self._by_standing[Standing.OPENING]):
            connection.drop()


class Connection(H11Protocol):
    """One connection; see the module."""

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
        """Whether it speaks HTTP: at once, or once TLS is agreed upon."""
        self._early = bytearray()
        """What came with the end of TLS's handshake, before `_secure` heard of that."""
        self._has_bytes = False
        """Whether something of a request that is not whole has come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        _bound_unsent(transport)
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
        """Agree upon TLS; the deadline of the head holds for this as well."""
        try:
            secured = await self.loop.start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=self._config.head_timeout_s,
            )
        except OSError:  # what TLS refuses, a client that left, or the deadline
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
        """See asyncio.Protocol."""
        self._forget()
        if self._has_begun:
            super().connection_lost(exc)
        elif self._securing is not None:
            self._securing.cancel()

    def data_received(self, data: bytes) -> None:
        """Read what came; after the last answer it is dropped."""
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
        """Begin the request whose head is whole, if one is; hand on its body."""
        self.app_state[_CROWDED] = self._places.is_crowded
        super().handle_events()
        if self.transport.is_closing() or self._standing is Standing.LEAVING:
            return
        if self.cycle is None or self.cycle.response_complete:
            return  # the head is not whole
        self._prepare_answer(self.cycle)
        if not self.cycle.more_body:
            self._stand(Standing.BUSY, None)
        elif self._standing is not Standing.SENDING:
            self._stand(Standing.SENDING, self._config.body_timeout_s + _BODY_GRACE_S)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection to a socket, which keeps its place until `end_socket`."""
        self._stand(Standing.BUSY, None)
        super().handle_websocket_upgrade(event)

    def end_socket(self) -> None:
        """The socket that took over this connection has ended."""
        self._forget()

    def _prepare_answer(self, cycle: RequestResponseCycle) -> None:
        """Say with an answer that comes before the whole body that the connection ends with it."""
        if not isinstance(cycle.transport, _Outgoing):
            outgoing: Any = _Outgoing(self)  # it has all that a cycle calls
            cycle.transport = outgoing
        closes = [CLOSE_HEADER] if cycle.more_body else []
        cycle.default_headers = [*self.server_state.default_headers, *closes]

    def finish(self) -> None:
        """Close behind a whole answer; a client that is still sending is given a moment."""
        if self.cycle.more_body:
            self._linger()
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP; uvicorn calls it where h11 has raised."""
        raised = sys.exception()
        status = getattr(raised, "error_status_hint", 400)
        if status == _HEAD_TOO_LARGE:
            told = f"the head of the request has more than {MAX_HEAD_BYTES} bytes"
        else:
            told = "not a valid HTTP/1.1 request"  # h11 would quote it, a key and all
        self._refuse(Refusal(status, told))

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to leave."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._stand(Standing.LEAVING, self._config.write_timeout_s)
            return
        if not (self.conn.our_state is h11.DONE and self.conn.their_state is h11.DONE):
            self._linger()  # the rest of the body is of no use
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
        """Begin to count the time in which the client does not read."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self._config.write_timeout_s, self._give_up_writing)

    def resume_writing(self) -> None:
        """The client reads."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def shutdown(self) -> None:
        """Finish the answer that is being made, and close; uvicorn calls it when it ends."""
        if self.cycle is None or self.cycle.response_complete:
            self.drop()
        else:
            self.cycle.keep_alive = False

    def shed(self) -> None:
        """Close, because others need the place; a request that has begun is told."""
        if self._has_bytes and self._standing in (Standing.OPENING, Standing.SENDING):
            self._write_refusal(
                Refusal(503, "too many connections, and this one was slow; try again in a moment")
            )
        self.drop()

    def drop(self) -> None:
        """Close now; what the client did not read is lost."""
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
        else:  # nothing was asked, or all was said
            self.drop()

    def _give_up_writing(self) -> None:
        self._places.metrics.count_closed("write")
        self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        self._write_refusal(refusal)
        self._linger()

    def _write_refusal(self, refusal: Refusal) -> None:
        """Answer in OpenAI's shape, where no answer has begun; the application is told to end."""
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
        """Tell the application, where it answers a request, that nothing more is sent."""
        if self.cycle is None or self.cycle.response_complete:
            return False
        self.cycle.disconnected = True
        self.cycle.waiting_for_100_continue = False  # it would be sent when the body is read
        self.cycle.message_event.set()
        return True

    def _linger(self) -> None:
        """Say that nothing more follows, and read on for a moment: see `_LINGER_S`."""
        self._stand(Standing.LEAVING, _LINGER_S)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            try:
                self.transport.write_eof()
            except OSError:  # the client is gone already, which asyncio hears of later
                self.drop()

    def _forget(self) -> None:
        self._set_deadline(None)
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        self._places.leave(self)


class _Outgoing:
    """What uvicorn writes an answer to: closing it lingers where the client is still sending."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def write(self, data: bytes) -> None:
        """See asyncio.Transport."""
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        """See asyncio.Transport."""
        return self._connection.transport.is_closing()

    def close(self) -> None:
        """See `Connection.finish`."""
        self._connection.finish()


def _bound_unsent(transport: asyncio.Transport) -> None:
    connected: socket.socket = transport.get_extra_info("socket")
    if connected.family in (socket.AF_INET, socket.AF_INET6):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)


def is_crowded(scope: Scope) -> bool:
    """Whether a request came when all places were taken; probes are answered all the same."""
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
    """What asyncio calls for each connection that it accepts."""
    return lambda: Connection(config, server_state, places, tls())

"""WebSockets of a server: they keep the place of the connection that they began as.

A socket is BUSY (see `connections`) from its upgrade to its end. Its client is pinged; one that
does not answer within the same time is dropped, so a half-open connection holds its place for two
intervals and no longer.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from espalier.wire.openenv import MAX_MESSAGE_BYTES

PING_S = 15.0
"""Between two pings, and how long the answer to one is waited for."""


class PlaceHolder(Protocol):
    """The connection whose place a socket keeps."""

    def end_socket(self) -> None:
        """Give the place back; called once or more."""
        ...


class SocketProtocol(WebSocketsSansIOProtocol):
    """One socket, on the connection that asked for it."""

    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401 (uvicorn's own)
        super().__init__(*given, **named)
        self.holder: PlaceHolder | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        # until `set_protocol` the transport still belongs to the HTTP connection
        held: Any = transport.get_protocol()
        self.holder = held
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        super().connection_lost(exc)
        if self.holder is not None:
            self.holder.end_socket()


def socket_settings() -> dict[str, Any]:
    """What uvicorn is told of sockets."""
    return {
        "ws": SocketProtocol,
        "ws_max_size": MAX_MESSAGE_BYTES,
        "ws_ping_interval": PING_S,
        "ws_ping_timeout": PING_S,
        "ws_per_message_deflate": False,  # a bomb of a few bytes would be a megabyte
    }

"""WebSockets of a server; each keeps the place of the HTTP connection it started as.

A socket is BUSY (see `connections`) from its upgrade to its end. The server pings its client and
drops one that does not answer within `PING_S`, so a half-open connection holds its place for two
intervals at most.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from espalier.wire.openenv import MAX_MESSAGE_BYTES

PING_S = 15.0
"""Seconds between two pings, and how long a client may take to answer one."""


class SlotHolder(Protocol):
    """The connection whose place a WebSocket keeps."""

    def end_socket(self) -> None:
        """Give the place back; may be called more than once."""
        ...


class SocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket that gives its connection's place back when it ends."""

    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401 (uvicorn's own)
        super().__init__(*given, **named)
        self.holder: SlotHolder | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the HTTP connection that held the transport before the upgrade."""
        assert isinstance(transport, asyncio.Transport)
        # until `set_protocol` the transport still belongs to the HTTP connection
        held: Any = transport.get_protocol()
        self.holder = held
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the WebSocket and give the place back."""
        super().connection_lost(exc)
        if self.holder is not None:
            self.holder.end_socket()


def socket_settings() -> dict[str, Any]:
    """Return uvicorn's settings for WebSockets."""
    return {
        "ws": SocketProtocol,
        "ws_max_size": MAX_MESSAGE_BYTES,
        "ws_ping_interval": PING_S,
        "ws_ping_timeout": PING_S,
        "ws_per_message_deflate": False,  # a few compressed bytes can expand to a megabyte
    }

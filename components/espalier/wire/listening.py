"""The listening socket, the limit of open files, and uvicorn with our own connections."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from espalier.config import ServingConfig
from espalier.records import ServingError
from espalier.wire.browsers import BrowserGuard
from espalier.wire.connections import (
    MAX_HEAD_BYTES,
    RESERVED_PLACES,
    Places,
    connection_factory,
)

_OTHER_FILES = 256
"""Open files besides connections: those of the interpreter, libraries and the policy."""
_BACKLOG = 2048


class BoundedServer(uvicorn.Server):
    """uvicorn with the places and deadlines of `connections`; serves until `should_exit`."""

    def __init__(
        self,
        app: ASGIApp,
        places: Places,
        *,
        drain_s: float,
        has_keys: bool,
        sockets: bool = False,
    ) -> None:
        """Configure uvicorn for an application.

        Args:
            app: answers the requests.
            places: the server's connections.
            drain_s: how long a stopping server may take to finish its answers.
            has_keys: whether the application asks for API keys, which no page in a browser has.
            sockets: whether to accept WebSockets too.
        """
        spoken: dict[str, Any] = {"ws": "none"}
        if sockets:
            from espalier.wire.sockets import socket_settings  # imports the websockets library

            spoken = socket_settings()
        super().__init__(
            uvicorn.Config(
                app if has_keys else BrowserGuard(app, lambda: self._on_loopback),
                loop="asyncio",
                lifespan="off",
                log_level="error",  # a line for each malformed request would fill the log
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                timeout_graceful_shutdown=max(1, round(drain_s)),
                **spoken,
            )
        )
        self._places = places
        self._on_loopback = False
        self._tls_context: Callable[[], ssl.SSLContext | None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections like uvicorn's `startup`, but with our protocol and TLS inside it.

        uvicorn would let asyncio run the TLS handshake before a connection is counted anywhere.
        """
        await self.lifespan.startup()
        self._on_loopback = all(is_loopback(one.getsockname()[0]) for one in sockets or ())
        loop = asyncio.get_running_loop()
        accepted = connection_factory(
            self.config, self.server_state, self._places, lambda: self._tls_context()
        )
        self.servers = [
            await loop.create_server(accepted, sock=listener, backlog=_BACKLOG)
            for listener in sockets or ()
        ]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close connections without a request, finish running answers, and stop."""
        self._places.close_opening()
        await super().shutdown(sockets)


def is_loopback(host: str) -> bool:
    """Return whether an address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def within_open_files(config: ServingConfig, say: Callable[[str], None]) -> ServingConfig:
    """Raise the limit of open files, or return a config with fewer connections.

    Raises:
        ServingError: the limit leaves no file for any connection.
    """
    others = RESERVED_PLACES + _OTHER_FILES
    needed = config.max_connections + others
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return config
    if hard == resource.RLIM_INFINITY or hard >= needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return config
    if hard <= others:
        raise ServingError(
            f"this process may have {hard} open files (`ulimit -Hn`); "
            f"serving needs {others} and one for each connection"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    say(
        f"warning: serving.max_connections is {hard - others} instead of {config.max_connections}: "
        f"this process may have {hard} open files (`ulimit -Hn`)"
    )
    return config.model_copy(update={"max_connections": hard - others})


def listening(host: str, port: int) -> socket.socket:
    """Open the listening socket; called before anything slow is loaded.

    Raises:
        ServingError: this machine does not have the address, or the port is taken.
    """
    try:
        listener = socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        raise ServingError(
            f"{host}:{port}: cannot be served on ({error}). Choose another --host or --port."
        ) from error
    # asyncio sets TCP_NODELAY on accepted sockets only if the listening socket names its protocol,
    # which Python's does not. Without it, a body waits 40 ms for the acknowledgement of its head
    return socket.socket(
        listener.family, listener.type, socket.IPPROTO_TCP, fileno=listener.detach()
    )

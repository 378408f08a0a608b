"""A server that leaves in order: not ready first, then closed, then done with what it began."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from espalier.config import ServingConfig
from espalier.records import ServingError


class DrainingServer(uvicorn.Server):
    """Serves until a signal: SIGTERM leaves as a cluster expects, SIGINT at once."""

    def __init__(self, app: ASGIApp, config: ServingConfig, on_leaving: Callable[[], None]) -> None:
        """Serve `app`.

        Args:
            app: what answers.
            config: how long is lingered and drained, how many connections there may be.
            on_leaving: called when the server has been told to leave.
        """
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=config.max_connections,
                timeout_graceful_shutdown=max(1, round(config.drain_s)),
            )
        )
        self._linger_s = config.linger_s
        self._on_leaving = on_leaving
        self._is_leaving = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Leave; a second signal does not wait."""
        if self._is_leaving or sig == signal.SIGINT:
            self.should_exit = True
            return
        self._is_leaving = True
        # signals are handled between two instructions of anything: the loop does it in its turn
        asyncio.get_running_loop().call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._on_leaving()
        asyncio.get_running_loop().call_later(self._linger_s, self._exit)

    def _exit(self) -> None:
        self.should_exit = True


def listening(host: str, port: int) -> socket.socket:
    """A socket that connections can be made to, before anything is loaded.

    Raises:
        ServingError: there is no such address here, or it is taken.
    """
    try:
        listener = socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        raise ServingError(
            f"{host}:{port}: cannot be served on ({error}). Choose another --host or --port."
        ) from error
    # asyncio sets TCP_NODELAY on what comes in only where the listening socket names its protocol,
    # as Python's does not. Without, a body waits 40 ms for the acknowledgement of its head
    return socket.socket(
        listener.family, listener.type, socket.IPPROTO_TCP, fileno=listener.detach()
    )

"""Whether the controller is alive, for the cluster's probes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from espalier.config import ControllerConfig
from espalier.records import ServingError

_PATIENCE = 3
"""Longest pauses without a beat after which the controller counts as dead."""


class Heartbeat:
    """When the controller last did something, and whether it worked.

    An API server that is away makes it not ready, and never dead: another start would not help.
    """

    def __init__(self, config: ControllerConfig, clock: Callable[[], float]) -> None:
        self._longest_s = _PATIENCE * (config.max_backoff_s + config.poll_s)
        self._clock = clock
        self._beat_s = clock()
        self._fault: str | None = "it has not looked yet"

    @classmethod
    @contextmanager
    def serving(
        cls, port: int, config: ControllerConfig, clock: Callable[[], float]
    ) -> Iterator[Heartbeat]:
        """A heartbeat that answers /healthz and /readyz meanwhile.

        Raises:
            ServingError: the port is taken.
        """
        heartbeat = cls(config, clock)
        try:
            server = ThreadingHTTPServer(("", port), _handler(heartbeat))
        except OSError as error:
            raise ServingError(
                f"port {port}: cannot be served on ({error}); choose --port"
            ) from error
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield heartbeat
        finally:
            server.shutdown()
            server.server_close()

    def beat(self, *, fault: str | None) -> None:
        """A step was made; `fault` is what kept it from working."""
        self._beat_s, self._fault = self._clock(), fault

    def fault(self, path: str) -> str | None:
        """What /healthz or /readyz has to complain of."""
        silent_s = self._clock() - self._beat_s
        if silent_s > self._longest_s:
            return f"no step for {silent_s:.0f} s"
        return self._fault if path == "/readyz" else None


def _handler(heartbeat: Heartbeat) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # of a connection that says nothing

        def do_GET(self) -> None:
            """Answer a probe."""
            known = self.path in ("/healthz", "/readyz")
            fault = heartbeat.fault(self.path) if known else "no such path"
            said = f"{fault or 'ok'}\n".encode()
            self.send_response(200 if fault is None else 503 if known else 404)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:
            """Probes are no news."""

    return Handler

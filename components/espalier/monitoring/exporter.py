"""HTTP server of /metrics while a stage runs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)

from espalier.monitoring.sandboxes import SandboxCollector
from espalier.monitoring.training import TrainingMetrics
from espalier.records import EspalierError, NullTracker, Tracker

PORT_VARIABLE = "ESPALIER_METRICS_PORT"
_HIGHEST_PORT = 65535


@contextmanager
def exported_tracker(
    stage: str, environment: Mapping[str, str], say: Callable[[str], None]
) -> Generator[Tracker]:
    """A tracker whose figures are served on the port of PORT_VARIABLE while the block runs.

    Args:
        stage: name of the stage, a label of its metrics.
        environment: variables of the process; without PORT_VARIABLE there is no server.
        say: takes a line where the port is in use, which does not end the stage.

    Raises:
        EspalierError: the variable's value is no port.
    """
    named = environment.get(PORT_VARIABLE)
    if not named:
        yield NullTracker()
        return
    disable_created_metrics()  # a second series for each counter, which no query here reads
    registry = CollectorRegistry()
    tracker = TrainingMetrics(stage, registry)
    registry.register(SandboxCollector())
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(_port(named), registry=registry)
    except OSError as error:
        say(f"no metrics are served on port {named}: {error.strerror}")
        yield NullTracker()
        return
    try:
        yield tracker
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _port(named: str) -> int:
    if named.isascii() and named.isdecimal() and 1 <= int(named) <= _HIGHEST_PORT:
        return int(named)
    raise EspalierError(f"{PORT_VARIABLE}={named}: give a port from 1 to {_HIGHEST_PORT}")

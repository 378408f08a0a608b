"""Metrics of the endpoint in Prometheus' text format."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

_GAUGES = {
    "ready": "1 where requests are accepted, else 0.",
    "taken": "Answers that are being sampled or wait.",
    "waiting": "Answers that wait for a place.",
    "connections": "Connections that are open.",
}
_BUCKETS_S = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Gauges(NamedTuple):
    """Values of the gauges at the moment of a scrape."""

    ready: int
    taken: int
    """Answers that are being sampled or wait."""
    waiting: int
    connections: int


class Metrics:
    """Counters and histograms since the start."""

    def __init__(self) -> None:
        disable_created_metrics()  # a second series for each counter, which no query here reads
        self._registry = CollectorRegistry()

        def counter(name: str, description: str, *labels: str) -> Counter:
            return Counter(f"espalier_serving_{name}", description, labels, registry=self._registry)

        def histogram(name: str, description: str) -> Histogram:
            name = f"espalier_serving_{name}_seconds"
            return Histogram(name, description, registry=self._registry, buckets=_BUCKETS_S)

        self._requests = counter(
            "requests",
            "Requests that were answered or refused, by HTTP status; 499: the client disconnected.",
            "route",
            "status",
        )
        self._prompt_tokens = counter(
            "prompt_tokens", "Tokens of prompts; each prompt of a request counts once."
        )
        self._sampled_tokens = counter("sampled_tokens", "Tokens of answers.")
        self._closed = counter(
            "closed_connections",
            "Connections closed because the client was silent or slow, by cause; shed: another "
            "connection needed the place.",
            "cause",
        )
        self._first_token = histogram(
            "first_token", "Time from the end of a request's body to the first token."
        )
        self._request = histogram("request", "Time from the end of a request's body to its answer.")
        self._gauges = {
            field: Gauge(f"espalier_serving_{field}", description, registry=self._registry)
            for field, description in _GAUGES.items()
        }

    def count_request(self, route: str, status: int) -> None:
        """Count a request that was answered or refused."""
        self._requests.labels(route, status).inc()

    def count_tokens(self, *, prompt: int, sampled: int) -> None:
        """Count the tokens of a request, complete or not."""
        self._prompt_tokens.inc(prompt)
        self._sampled_tokens.inc(sampled)

    def count_closed(self, cause: str) -> None:
        """Count a connection that was closed because its client was silent or slow."""
        self._closed.labels(cause).inc()

    def observe_first_token(self, seconds: float) -> None:
        """Record the seconds from the end of a request's body to its first token."""
        self._first_token.observe(seconds)

    def observe_request(self, seconds: float) -> None:
        """Record the seconds from the end of a request's body to the end of its answer."""
        self._request.observe(seconds)

    def text(self, gauges: Gauges) -> str:
        """All metrics in Prometheus' text format."""
        for field, value in gauges._asdict().items():
            self._gauges[field].set(value)
        return generate_latest(self._registry).decode()

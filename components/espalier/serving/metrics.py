"""Metrics of the endpoint in Prometheus' text format 0.0.4."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

_COUNTERS = {
    "espalier_serving_requests_total": "Requests that were answered or refused, by HTTP status; "
    "499 are clients that left.",
    "espalier_serving_prompt_tokens_total": "Tokens of prompts, once for each request's prompt.",
    "espalier_serving_sampled_tokens_total": "Tokens of answers.",
    "espalier_serving_closed_connections_total": "Connections that were closed because the client "
    "was silent or slow, by what was waited for; shed are those whose place another one needed.",
}
_HISTOGRAMS = {
    "espalier_serving_first_token_seconds": "From the body of a request to its first token.",
    "espalier_serving_request_seconds": "From the body of a request to the end of its answer.",
}
_GAUGES = {
    "ready": "Whether requests are taken, 0 or 1.",
    "taken": "Answers that are being sampled or wait.",
    "waiting": "Answers that wait for a place.",
    "connections": "Connections that are open.",
}
_BUCKETS_S = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, math.inf)


class Gauges(NamedTuple):
    """Values at the moment of the scrape."""

    ready: int
    taken: int
    """Answers that are being sampled or wait."""
    waiting: int
    connections: int


class Metrics:
    """Counters and histograms since the start."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._sums: dict[str, float] = dict.fromkeys(_HISTOGRAMS, 0.0)

    def count_request(self, route: str, status: int) -> None:
        """Count a request that was answered or refused."""
        labels = f'{{route="{route}",status="{status}"}}'
        self._counts["espalier_serving_requests_total", labels] += 1

    def count_tokens(self, *, prompt: int, sampled: int) -> None:
        """Count the tokens of a request, also of one that broke off."""
        self._counts["espalier_serving_prompt_tokens_total", ""] += prompt
        self._counts["espalier_serving_sampled_tokens_total", ""] += sampled

    def count_closed(self, cause: str) -> None:
        """Count a connection that was closed because its client was silent or slow."""
        self._counts["espalier_serving_closed_connections_total", f'{{cause="{cause}"}}'] += 1

    def observe_first_token(self, seconds: float) -> None:
        """Note the seconds from a request's body to its first token."""
        self._observe("espalier_serving_first_token_seconds", seconds)

    def observe_request(self, seconds: float) -> None:
        """Note the seconds from a request's body to the end of its answer."""
        self._observe("espalier_serving_request_seconds", seconds)

    def text(self, gauges: Gauges) -> str:
        """All metrics."""
        lines: list[str] = []
        for name, told in _COUNTERS.items():
            lines += [f"# HELP {name} {told}", f"# TYPE {name} counter"]
            found = sorted((k, v) for k, v in self._counts.items() if k[0] == name)
            lines += [f"{name}{labels} {value}" for (_, labels), value in found]
        for name, told in _HISTOGRAMS.items():
            lines += [f"# HELP {name} {told}", f"# TYPE {name} histogram", *self._histogram(name)]
        for field, value in gauges._asdict().items():
            name = f"espalier_serving_{field}"
            lines += [f"# HELP {name} {_GAUGES[field]}", f"# TYPE {name} gauge", f"{name} {value}"]
        return "\n".join(lines) + "\n"

    def _observe(self, name: str, seconds: float) -> None:
        self._sums[name] += seconds
        for bound in _BUCKETS_S:
            self._buckets[name, bound] += seconds <= bound

    def _histogram(self, name: str) -> list[str]:
        bounds = {bound: "+Inf" if math.isinf(bound) else f"{bound}" for bound in _BUCKETS_S}
        return [
            *(f'{name}_bucket{{le="{bounds[b]}"}} {self._buckets[name, b]}' for b in _BUCKETS_S),
            f"{name}_sum {self._sums[name]:.6f}",
            f"{name}_count {self._buckets[name, math.inf]}",
        ]

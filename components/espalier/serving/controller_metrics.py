"""Prometheus metrics of the controller, read from it when they are scraped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of Prometheus' text format, which every scraper reads."""
COUNTED = {
    "rollouts": "Roll-outs of a new champion that were begun.",
    "rollbacks": "Roll-outs that went back to the last good version.",
    "failures": "Versions that could not be served.",
    "refusals": "Champions that were not served because no gate pass or reason is recorded.",
    "faults": "Steps that failed because the cluster or MLflow was away or refused.",
}
"""What is counted -> what it means; the metric is espalier_controller_NAME_total."""


class Figures(NamedTuple):
    """The controller at the moment of a scrape."""

    counts: Mapping[str, int]
    """How often since the start, by the names of COUNTED."""
    versions: Mapping[str, str]
    """Numbers of versions: `champion`, where the alias points, and `served`, the last good one."""
    silent_s: float
    """Seconds since the last step."""


class _Snapshot(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Every metric once."""
        for name, told in COUNTED.items():
            count = self._figures.counts.get(name, 0)
            yield CounterMetricFamily(f"espalier_controller_{name}", told, value=count)
        versions = GaugeMetricFamily(
            "espalier_controller_version",
            "Number of the version that the alias champion points at, and of the last good one.",
            labels=["role"],
        )
        for role, number in self._figures.versions.items():
            if number.isdecimal():
                versions.add_metric([role], int(number))
        yield versions
        yield GaugeMetricFamily(
            "espalier_controller_silent_seconds",
            "Time since the last step; it grows where the controller hangs.",
            value=self._figures.silent_s,
        )


def exposition(figures: Figures) -> bytes:
    """All metrics, and those of the process, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(figures))
    ProcessCollector(registry=registry)
    return generate_latest(registry)

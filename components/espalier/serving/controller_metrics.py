"""Prometheus metrics of the serving controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from espalier.serving.decision import RolloutState

ROLLING, ROLLED_BACK = "rolling", "rolled_back"
"""Outcomes of a roll-out to the champion, and to the last good version in its place."""
_STEPS = "espalier_controller_steps"
_ROLLOUTS = "espalier_controller_rollouts"
_COUNTED = {
    _STEPS: ("Looks at the alias, by outcome.", ("ok", "fault")),
    _ROLLOUTS: (
        "What became of versions that were to be served, by outcome.",
        (ROLLING, "served", ROLLED_BACK, "failed", "refused"),
    ),
}
"""Counter -> help, outcomes."""


class ControllerMetrics(Collector):
    """Counters since the start, and what was seen last; written by one thread, read by others."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._last_step_s: float | None = None
        self._versions: dict[str, int] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def count_step(self, outcome: str, now_s: float) -> None:
        """Count a look that worked ("ok") or did not ("fault"); seconds since 1970."""
        self._counts[_STEPS, outcome] += 1
        self._last_step_s = now_s

    def count_rollout(self, outcome: str) -> None:
        """Count what became of a version."""
        self._counts[_ROLLOUTS, outcome] += 1

    def show(self, champion: str | None, state: RolloutState) -> None:
        """Show what a look saw: the version that the alias points at, and what serves."""
        versions = {
            "champion": champion,
            "last_good": state.memory.last_good,
            "deployed": state.asked,
        }
        # at once: a scrape reads them all
        self._versions = {
            role: int(version)
            for role, version in versions.items()
            if version is not None and version.isdecimal()
        }

    def collect(self) -> Iterator[Metric]:
        """Every metric once."""
        for name, (told, outcomes) in _COUNTED.items():
            counter = CounterMetricFamily(name, told, labels=["outcome"])
            for outcome in outcomes:
                counter.add_metric([outcome], self._counts[name, outcome])
            yield counter
        yield GaugeMetricFamily(
            "espalier_controller_last_step_timestamp_seconds",
            "When it last looked.",
            value=self._last_step_s,
        )
        versions = GaugeMetricFamily(
            "espalier_controller_version",
            "Number of the version that the alias champion points at, of the last good one, and "
            "of the one that the pods were given.",
            labels=["role"],
        )
        for role, number in self._versions.items():
            versions.add_metric([role], number)
        yield versions

    def text(self) -> bytes:
        """All metrics, and those of the process, in Prometheus' text format."""
        return generate_latest(self._registry)

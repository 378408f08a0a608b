"""Prometheus metrics of the serving controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from espalier.serving.decision import RolloutState

ROLLING, ROLLED_BACK = "rolling", "rolled_back"
"""Outcomes of roll-outs: to the champion, and back to the last good version."""
_STEPS = "espalier_controller_steps"
_ROLLOUTS = "espalier_controller_rollouts"
_COUNTED = {
    _STEPS: ("Steps of the controller, by outcome.", ("ok", "fault")),
    _ROLLOUTS: (
        "Roll-outs of versions, by outcome.",
        (ROLLING, "served", ROLLED_BACK, "failed", "refused"),
    ),
}
"""Counter -> help, outcomes."""


class ControllerMetrics(Collector):
    """Counters since the start, and the versions of the last step.

    One thread writes them; others read them.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._last_step_s: float | None = None
        self._versions: dict[str, int] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def count_step(self, outcome: str, now_s: float) -> None:
        """Count a step with outcome "ok" or "fault"; `now_s` is in seconds since 1970."""
        self._counts[_STEPS, outcome] += 1
        self._last_step_s = now_s

    def count_rollout(self, outcome: str) -> None:
        """Count an outcome of a version's roll-out."""
        self._counts[_ROLLOUTS, outcome] += 1

    def show(self, champion: str | None, state: RolloutState) -> None:
        """Set the version that the alias points at, and the state of the serving workload."""
        versions = {
            "champion": champion,
            "last_good": state.memory.last_good,
            "deployed": state.asked,
        }
        # replaced as a whole, because a scrape may read it at any time
        self._versions = {
            role: int(version)
            for role, version in versions.items()
            if version is not None and version.isdecimal()
        }

    def collect(self) -> Iterator[Metric]:
        """The controller's metrics, as `CollectorRegistry` asks for them."""
        for name, (description, outcomes) in _COUNTED.items():
            counter = CounterMetricFamily(name, description, labels=["outcome"])
            for outcome in outcomes:
                counter.add_metric([outcome], self._counts[name, outcome])
            yield counter
        yield GaugeMetricFamily(
            "espalier_controller_last_step_timestamp_seconds",
            "Time of the last step, in seconds since 1970.",
            value=self._last_step_s,
        )
        versions = GaugeMetricFamily(
            "espalier_controller_version",
            "Version number by role: champion (the alias), last_good, and deployed (in the pod "
            "template).",
            labels=["role"],
        )
        for role, number in self._versions.items():
            versions.add_metric([role], number)
        yield versions

    def text(self) -> bytes:
        """The controller's and the process' metrics in Prometheus' text format."""
        return generate_latest(self._registry)

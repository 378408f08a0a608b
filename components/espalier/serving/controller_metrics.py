"""Prometheus metrics of the serving controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from espalier.serving.decision import RolloutState
from espalier.serving.score import ServedScore

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of Prometheus' text format, which every scraper reads."""
ROLLED_BACK = "rolled_back"
"""Outcome of a roll-out to another version than the champion."""
_STEPS = "espalier_controller_steps"
_ROLLOUTS = "espalier_controller_rollouts"
_COUNTED = {
    _STEPS: ("Looks at the alias, by outcome.", ("ok", "fault")),
    _ROLLOUTS: (
        "What became of versions that were to be served, by outcome.",
        ("canary", "rolling", "served", "went_back", ROLLED_BACK, "failed", "refused"),
    ),
}
"""Counter -> help, outcomes."""
_LAST = "espalier_controller_last_step_timestamp_seconds"
_VERSION = "espalier_controller_version"
_P99 = "espalier_canary_latency_p99_seconds"
_MATCH = "espalier_canary_exact_match"
_INVALID = "espalier_canary_invalid_answers"
_GAUGES = {
    _LAST: "When it last looked.",
    _VERSION: "Number of the version that the alias champion points at, of the last good one, and "
    "of those that the stable track and the canary were given.",
    "espalier_canary_active": "Whether a promoted version is taking over.",
    "espalier_canary_step": "Its step; 0 before it gets any traffic.",
    "espalier_canary_weight": "Share of the traffic that its step asks for, 0-1.",
    "espalier_canary_share": "Share that it has: of pods, or of a gateway's weights.",
    "espalier_canary_questions": "Questions of the present step that the former version answered.",
    "espalier_canary_errors": "Questions of the step that the canary left unanswered.",
    _INVALID: "Answers of the step that are none.",
    _P99: "99th percentile of the step's answers.",
    _MATCH: "Share of right answers to the step's questions.",
    "espalier_canary_p_value": "Of the test that the canary is not worse.",
}
"""Gauge -> help."""
_LABELS = {_VERSION: "role", _INVALID: "track", _P99: "track", _MATCH: "track"}

Values = dict[tuple[str, str], float]
"""(gauge, value of its label; empty without one) -> value."""


class ControllerMetrics(Collector):
    """Counters since the start, and what was seen last; written by one thread, read by others."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._gauges: Values = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def count_step(self, outcome: str, now_s: float) -> None:
        """Count a look that worked ("ok") or did not ("fault"); seconds since 1970."""
        self._counts[_STEPS, outcome] += 1
        self._gauges = {**self._gauges, (_LAST, ""): now_s}

    def count_rollout(self, outcome: str) -> None:
        """Count what became of a version."""
        self._counts[_ROLLOUTS, outcome] += 1

    def show(
        self, champion: str | None, state: RolloutState, weight: float, score: ServedScore | None
    ) -> None:
        """Show what a look saw.

        Args:
            champion: version that the alias points at.
            state: of both tracks.
            weight: of the present step.
            score: of the present step; None without answers.
        """
        canary, memory = state.canary, state.memory
        versions = {
            "champion": champion,
            "last_good": memory.last_good,
            "stable": state.asked,
            "canary": canary.asked if canary.has_pods else None,
        }
        # at once: a scrape reads them all
        self._gauges = {
            **{key: at for key, at in self._gauges.items() if key[0] == _LAST},
            **{
                (_VERSION, role): int(version)
                for role, version in versions.items()
                if version is not None and version.isdecimal()
            },
            ("espalier_canary_active", ""): int(memory.canary is not None),
            ("espalier_canary_step", ""): memory.step,
            ("espalier_canary_weight", ""): weight,
            ("espalier_canary_share", ""): canary.share,
            **(_score_values(score) if score and memory.canary else {}),
        }

    def collect(self) -> Iterator[Metric]:
        """Every metric once."""
        for name, (told, outcomes) in _COUNTED.items():
            counter = CounterMetricFamily(name, told, labels=["outcome"])
            for outcome in outcomes:
                counter.add_metric([outcome], self._counts[name, outcome])
            yield counter
        gauges = self._gauges
        for name, told in _GAUGES.items():
            yield _gauge(name, told, gauges)

    def text(self) -> bytes:
        """All metrics, and those of the process, in Prometheus' text format."""
        return generate_latest(self._registry)


def _gauge(name: str, told: str, values: Mapping[tuple[str, str], float]) -> Metric:
    label = _LABELS.get(name)
    gauge = GaugeMetricFamily(name, told, labels=[label] if label else [])
    for (of, labelled), value in values.items():
        if of == name:
            gauge.add_metric([labelled] if label else [], value)
    return gauge


def _score_values(score: ServedScore) -> Values:
    values: Values = {
        ("espalier_canary_questions", ""): score.requests,
        ("espalier_canary_errors", ""): score.errors,
        (_INVALID, "canary"): score.invalid,
        (_INVALID, "stable"): score.former_invalid,
        (_P99, "canary"): score.p99_s,
        (_P99, "stable"): score.former_p99_s,
    }
    if score.graded:
        values[_MATCH, "canary"] = score.right / score.graded
        values[_MATCH, "stable"] = score.former_right / score.graded
        values["espalier_canary_p_value", ""] = score.p_value
    return values

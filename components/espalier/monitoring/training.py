"""Prometheus metrics of training steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from espalier.records import NullTracker, Progress
from espalier.records.step_figures import STEP_FIGURES

_GAUGES = {
    "reward": "reward_mean",
    "pass_rate": "pass_ratio",
    "zero_variance_share": "zero_variance_ratio",
    "equal_outcomes_share": "equal_outcomes_ratio",
    "loss": "loss",
    "grad_norm": "gradient_norm",
    "entropy": "entropy_nats",
    "clipped_share": "clipped_ratio",
    "mismatch_kl": "mismatch_kl_nats",
    "kl": "reference_kl_nats",
    "dev_em": "dev_exact_match_ratio",
    "tokens_per_s": "tokens_per_second",
}
"""Figure of a step -> the metric's name without its prefix `espalier_training_`."""
_COUNTERS = ("lost_episodes", "broke_sandbox_episodes", "skipped_updates")
_SECONDS = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class TrainingMetrics(NullTracker):
    """Tracker that keeps the newest step's figures as metrics.

    A figure that a stage does not report has no series, so that dashboards show no zeros for it.
    """

    def __init__(
        self,
        stage: str,
        registry: CollectorRegistry,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Register the metrics.

        Args:
            stage: label of all series.
            registry: registry of the metrics.
            clock: gives seconds since 1970.
        """
        self._stage, self._clock = stage, clock
        self._checkpoint_step = -1.0

        def gauge(name: str, description: str) -> Gauge:
            return Gauge(f"espalier_training_{name}", description, ["stage"], registry=registry)

        self._gauges = {
            figure: gauge(name, f"Newest step: {_described(figure)}")
            for figure, name in _GAUGES.items()
        }
        self._counters = {
            name: Counter(
                f"espalier_training_{name}",
                f"Sum over the steps: {_described(name)}",
                ["stage"],
                registry=registry,
            )
            for name in _COUNTERS
        }
        self._step = gauge("step", "Finished optimizer steps.")
        self._planned = gauge("planned_steps", "Optimizer steps that the profile asks for.")
        self._checkpoint = gauge(
            "checkpoint_timestamp_seconds", "Time of the newest checkpoint, since 1970."
        )
        self._started = gauge("start_timestamp_seconds", "Time of the stage's start, since 1970.")
        self._started.labels(stage).set(clock())
        self._seconds = {
            figure: Histogram(
                f"espalier_training_{name}_seconds",
                description,
                ["stage"],
                buckets=_SECONDS,
                registry=registry,
            )
            for figure, name, description in (
                ("step_s", "step", "Duration of a step, with its evaluation and checkpoint."),
                ("rollout_s", "rollout", "Part of a step in which the learner waits for rollouts."),
            )
        }

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Keep the figures of a step; figures without a step are only in MLflow."""
        if step is None:
            return
        self._step.labels(self._stage).set(step)
        for figure, value in values.items():
            if figure in self._gauges:
                self._gauges[figure].labels(self._stage).set(value)
            elif figure in self._counters:
                self._counters[figure].labels(self._stage).inc(value)
            elif figure in self._seconds:
                self._seconds[figure].labels(self._stage).observe(value)
        saved = values.get("checkpoint_step", self._checkpoint_step)
        if saved != self._checkpoint_step:
            self._checkpoint_step = saved
            self._checkpoint.labels(self._stage).set(self._clock())

    @contextmanager
    def progress(self, description: str, total: int) -> Generator[Progress]:
        """Record the number of planned steps."""
        self._planned.labels(self._stage).set(total)
        with super().progress(description, total) as shown:
            yield shown


def _described(name: str) -> str:
    figure = STEP_FIGURES[name]
    return f"{figure.what} ({figure.scale})."

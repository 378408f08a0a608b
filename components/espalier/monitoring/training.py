"""Prometheus metrics of training steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from espalier.records import NullTracker, Progress

_GAUGES = {
    "reward": ("reward_mean", "Mean reward of the newest step's trajectories."),
    "pass_rate": ("pass_ratio", "Share of the newest step's trajectories that succeeded."),
    "zero_variance_share": (
        "zero_variance_ratio",
        "Share of the newest step's groups whose rewards are all equal, which give no signal.",
    ),
    "loss": ("loss", "Loss of the newest step."),
    "grad_norm": ("gradient_norm", "Norm of the newest step's gradient before it was clipped."),
    "entropy": ("entropy_nats", "Mean entropy of the policy on the tokens that it sampled."),
    "clipped_share": ("clipped_ratio", "Share of tokens whose importance ratio was clipped."),
    "mismatch_kl": ("mismatch_kl_nats", "KL of the sampling engine against the trainer."),
    "kl": ("reference_kl_nats", "KL of the policy against the reference, where it is computed."),
    "dev_em": ("dev_exact_match_ratio", "Share of dev questions that were answered correctly."),
    "tokens_per_s": ("tokens_per_second", "Tokens per second of the newest step."),
}
"""Figure of a step -> name after espalier_training_, and description."""
_COUNTERS = {
    "lost_episodes": ("lost_episodes", "Episodes that the infrastructure lost, without a reward."),
    "broke_sandbox_episodes": (
        "broke_sandbox_episodes",
        "Episodes whose own program ended its sandbox: wrong answers.",
    ),
    "skipped_updates": ("skipped_updates", "Updates whose gradient was not finite."),
}
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

        self._gauges = {figure: gauge(*named) for figure, named in _GAUGES.items()}
        self._counters = {
            figure: Counter(f"espalier_training_{name}", description, ["stage"], registry=registry)
            for figure, (name, description) in _COUNTERS.items()
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

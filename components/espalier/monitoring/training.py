"""Figures of the steps of training as Prometheus metrics."""

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
        "Share of the newest step's groups whose rewards were all equal: no signal.",
    ),
    "loss": ("loss", "Loss of the newest step."),
    "grad_norm": ("gradient_norm", "Norm of the newest step's gradient before it was clipped."),
    "entropy": ("entropy_nats", "Mean entropy of the policy on the tokens that it sampled."),
    "clipped_share": ("clipped_ratio", "Share of tokens whose importance ratio was clipped."),
    "mismatch_kl": ("mismatch_kl_nats", "KL of the engine that sampled against the trainer."),
    "kl": ("reference_kl_nats", "KL of the policy against the reference, where it is computed."),
    "dev_em": ("dev_exact_match_ratio", "Share of dev questions that were answered right."),
    "tokens_per_s": ("tokens_per_second", "Sampled, or trained, tokens of the newest step."),
}
"""Figure of a step -> name after espalier_training_, and what it is."""
_COUNTERS = {
    "lost_episodes": ("lost_episodes", "Episodes that were lost from outside, without a reward."),
    "broke_sandbox_episodes": (
        "broke_sandbox_episodes",
        "Episodes whose own program ended its sandbox: wrong answers.",
    ),
    "skipped_updates": ("skipped_updates", "Updates whose gradient was not finite."),
}
_SECONDS = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class TrainingMetrics(NullTracker):
    """A tracker that keeps the newest step's figures for scrapes.

    A figure that a stage does not report has no series, so a dashboard shows no zeros for it.
    """

    def __init__(
        self,
        stage: str,
        registry: CollectorRegistry,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin.

        Args:
            stage: the label of all series.
            registry: where the metrics are.
            clock: seconds since 1970.
        """
        self._stage, self._clock = stage, clock
        self._checkpoint_step = -1.0

        def gauge(name: str, told: str) -> Gauge:
            return Gauge(f"espalier_training_{name}", told, ["stage"], registry=registry)

        self._gauges = {figure: gauge(*named) for figure, named in _GAUGES.items()}
        self._counters = {
            figure: Counter(f"espalier_training_{name}", told, ["stage"], registry=registry)
            for figure, (name, told) in _COUNTERS.items()
        }
        self._step = gauge("step", "Optimizer steps that are done.")
        self._planned = gauge("planned_steps", "Optimizer steps that the profile asks for.")
        self._checkpoint = gauge(
            "checkpoint_timestamp_seconds", "When the newest checkpoint was written, since 1970."
        )
        self._started = gauge("start_timestamp_seconds", "When the stage began, since 1970.")
        self._started.labels(stage).set(clock())
        self._seconds = {
            figure: Histogram(
                f"espalier_training_{name}_seconds",
                told,
                ["stage"],
                buckets=_SECONDS,
                registry=registry,
            )
            for figure, name, told in (
                ("step_s", "step", "Duration of a step, with its evaluation and checkpoint."),
                ("rollout_s", "rollout", "Part of a step in which the learner waits for rollouts."),
            )
        }

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Keep the figures of a step; those of no step are MLflow's alone."""
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
        """Note how many steps are planned."""
        self._planned.labels(self._stage).set(total)
        with super().progress(description, total) as shown:
            yield shown

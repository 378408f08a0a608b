"""Metrics of the serving controller in Prometheus' text format 0.0.4."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from espalier.serving.decision import RolloutState
from espalier.serving.score import ServedScore

_LAST = "espalier_controller_last_step_timestamp_seconds"
_TOLD = {
    "espalier_controller_steps_total": ("counter", "Looks at the alias, by outcome."),
    "espalier_controller_rollouts_total": (
        "counter",
        "What became of versions that were to be served.",
    ),
    _LAST: ("gauge", "When it last looked."),
    "espalier_controller_served_version": ("gauge", "Version that each track was given."),
    "espalier_canary_active": ("gauge", "Whether a promoted version is taking over."),
    "espalier_canary_step": ("gauge", "Its step; 0 before it gets any traffic."),
    "espalier_canary_weight": ("gauge", "Share of the traffic that its step asks for, 0-1."),
    "espalier_canary_share": ("gauge", "Share that it has: of pods, or of a gateway's weights."),
    "espalier_canary_questions": (
        "gauge",
        "Questions of the present step that the former version answered.",
    ),
    "espalier_canary_errors": ("gauge", "Questions of the step that the canary left unanswered."),
    "espalier_canary_invalid_answers": ("gauge", "Answers of the step that are none."),
    "espalier_canary_latency_p99_seconds": ("gauge", "99th percentile of the step's answers."),
    "espalier_canary_exact_match": ("gauge", "Share of right answers to the step's questions."),
    "espalier_canary_p_value": ("gauge", "Of the test that the canary is not worse."),
}


class ControllerMetrics:
    """Counters since the start, and what was seen last."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._gauges: dict[str, float] = {}
        for outcome in ("ok", "fault"):
            self._counts[_named("espalier_controller_steps_total", outcome=outcome)] = 0

    def count_step(self, outcome: str, now_s: float) -> None:
        """Count a look that worked ("ok") or did not ("fault"); seconds since 1970."""
        self._counts[_named("espalier_controller_steps_total", outcome=outcome)] += 1
        self._gauges = {**self._gauges, _LAST: now_s}

    def count_rollout(self, outcome: str) -> None:
        """Count what became of a version: rolling, canary, served, failed, refused, went_back."""
        self._counts[_named("espalier_controller_rollouts_total", outcome=outcome)] += 1

    def show(self, state: RolloutState, weight: float, score: ServedScore | None) -> None:
        """Show what a look saw.

        Args:
            state: of both tracks.
            weight: of the present step.
            score: of the present step; None without answers.
        """
        canary, memory = state.canary, state.memory
        tracks = {"stable": state.asked, "canary": canary.asked if canary.has_pods else None}
        kept = {key: at for key, at in self._gauges.items() if key == _LAST}
        versions = {
            _named("espalier_controller_served_version", track=track, version=version): 1
            for track, version in tracks.items()
            if version is not None
        }
        # at once: another thread reads them
        self._gauges = {
            **kept,
            **versions,
            "espalier_canary_active": int(memory.canary is not None),
            "espalier_canary_step": memory.step,
            "espalier_canary_weight": weight,
            "espalier_canary_share": canary.share,
            **(_score_gauges(score) if score and memory.canary else {}),
        }

    def text(self) -> str:
        """All metrics."""
        # written by one thread and read by others, so from copies
        values: dict[str, float] = {**self._counts.copy(), **self._gauges}
        lines: list[str] = []
        for name, (kind, told) in _TOLD.items():
            found = list(_of(name, values))
            if found:
                lines += [f"# HELP {name} {told}", f"# TYPE {name} {kind}", *found]
        return "\n".join(lines) + "\n"


def _score_gauges(score: ServedScore) -> dict[str, float]:
    p99 = "espalier_canary_latency_p99_seconds"
    gauges: dict[str, float] = {
        "espalier_canary_questions": score.requests,
        "espalier_canary_errors": score.errors,
        _named("espalier_canary_invalid_answers", track="canary"): score.invalid,
        _named("espalier_canary_invalid_answers", track="stable"): score.former_invalid,
        _named(p99, track="canary"): score.p99_s,
        _named(p99, track="stable"): score.former_p99_s,
    }
    if score.graded:
        match = "espalier_canary_exact_match"
        gauges[_named(match, track="canary")] = score.right / score.graded
        gauges[_named(match, track="stable")] = score.former_right / score.graded
        gauges["espalier_canary_p_value"] = score.p_value
    return gauges


def _named(name: str, **labels: str) -> str:
    pairs = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{pairs}}}"


def _of(name: str, values: Mapping[str, float]) -> Iterator[str]:
    for key, value in sorted(values.items()):
        if key.partition("{")[0] == name:
            yield f"{key} {value:.10g}" if "timestamp" not in name else f"{key} {value:.3f}"

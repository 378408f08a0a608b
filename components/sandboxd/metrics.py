"""Counters in Prometheus' text format 0.0.4; without a library, so that images need none."""

from __future__ import annotations

import math
from collections import Counter

from sandboxd.wire import RunEnd, RunRequest

_HELP = {
    "sandboxd_runs_total": "Runs that ended, by kind and by cause of the end.",
    "sandboxd_run_seconds": "Wall time of runs.",
    "sandboxd_dropped_bytes_total": "Output beyond the cap.",
    "sandboxd_swept_total": "Kills of every process because a run could not be ended otherwise.",
    "sandboxd_resets_total": "Resets of the workspace.",
    "sandboxd_refused_total": "Requests that were refused, by HTTP status.",
}
_BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, math.inf)


class Metrics:
    """Counters since the start."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._seconds: Counter[float] = Counter()
        self._seconds_sum = 0.0

    def count(self, name: str, labels: str = "", *, by: int = 1) -> None:
        """Add to a counter; labels in Prometheus' syntax, `a="b",c="d"`."""
        self._counts[name, labels] += by

    def count_run(self, request: RunRequest, end: RunEnd, dropped_bytes: int) -> None:
        """Count a run that ended."""
        kind = "exec" if request.argv else "session" if request.session else "python"
        ended_by = end.killed_by or ("signal" if end.signal else "itself")
        self.count("sandboxd_runs_total", f'kind="{kind}",ended_by="{ended_by}"')
        self.count("sandboxd_dropped_bytes_total", by=dropped_bytes)
        self._seconds_sum += end.duration_s
        for bound in _BUCKETS_S:
            self._seconds[bound] += end.duration_s <= bound

    def text(self, *, runs: int) -> str:
        """All counters, and the number of runs in progress, as a scrape's answer."""
        lines = [
            "# HELP sandboxd_runs_in_flight Runs and sessions that have not ended.",
            "# TYPE sandboxd_runs_in_flight gauge",
            f"sandboxd_runs_in_flight {runs}",
        ]
        for name, text in _HELP.items():
            kind = "histogram" if name.endswith("_seconds") else "counter"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [
                f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"
                for (counted, labels), value in sorted(self._counts.items())
                if counted == name
            ]
            if kind == "histogram":
                lines += self._histogram(name)
        return "\n".join(lines) + "\n"

    def _histogram(self, name: str) -> list[str]:
        bounds = {bound: "+Inf" if math.isinf(bound) else f"{bound}" for bound in _BUCKETS_S}
        return [
            *(f'{name}_bucket{{le="{bounds[b]}"}} {self._seconds[b]}' for b in _BUCKETS_S),
            f"{name}_sum {self._seconds_sum:.6f}",
            f"{name}_count {self._seconds[math.inf]}",
        ]

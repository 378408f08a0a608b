"""One run of the library, and its history as JSON lines."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from espalier.records import NullTracker, json_digest, write_whole
from espalier.records.errors import TrainingError
from tests.benchmarks.failures.kinds import KINDS, changes_of, settings_of
from tests.benchmarks.keeping import commit

OUT = Path("runs/benchmarks/failures")


class History(NamedTuple):
    """A finished run."""

    kind: str
    seed: int
    onset: int
    """Step from which the failure acts; 0 of a healthy run."""
    start_dev_em: float
    rows: Sequence[Mapping[str, float]]
    about: Mapping[str, Any]


class Cost(NamedTuple):
    """Processor seconds of one step."""

    step: float
    attempt_figures: float
    detectors: float


def measured_cost(out: Path, *, steps: int = 6) -> Cost:
    """Measure a healthy run's step, and what the figures of attempts and the detectors take of it.

    Args:
        out: folder of warm policies.
        steps: steps of the run.
    """
    from espalier.training.attempt_figures import attempt_figures
    from espalier.training.health import HealthMonitor, new_detectors
    from tests.benchmarks.failures.world import build_loop, profile_of

    settings = {"steps": steps, "evaluate_every": steps}
    with tempfile.TemporaryDirectory() as folder:
        change = changes_of(KINDS["healthy"])
        loop = build_loop(profile_of(settings, 0), Path(folder), out / "warm", change)
        started = time.process_time()
        loop.run(NullTracker())
        step_s = (time.process_time() - started) / steps
        attempts, history = loop.progress.newest_attempts, loop.progress.history
    started, repeats = time.process_time(), 20
    for _ in range(repeats):
        attempt_figures(attempts, offers_tools=True)
    figures_s = (time.process_time() - started) / repeats
    monitor = HealthMonitor(new_detectors(), time.time)
    started, rows = time.process_time(), 0
    for _ in range(40):  # detectors of a run of some hundred steps
        for row in history:
            monitor.observe(row, attempts)
            rows += 1
    return Cost(step_s, figures_s, (time.process_time() - started) / rows)


def path_of(out: Path, kind: str, seed: int) -> Path:
    """Return the file of a run."""
    return out / f"{kind}-{seed}.jsonl"


def run_one(kind: str, seed: int, out: Path) -> Path:
    """Train one run, and keep its history.

    A run that ends with an error of training keeps the steps before it.
    """
    from tests.benchmarks.failures.world import build_loop, profile_of

    chosen = KINDS[kind]
    profile = profile_of(settings_of(kind, seed), seed)
    started, error = time.process_time(), ""
    with tempfile.TemporaryDirectory() as folder:
        loop = build_loop(profile, Path(folder), out / "warm", changes_of(chosen))
        try:
            loop.run(NullTracker())
        except TrainingError as ended:
            error = str(ended)
        progress = loop.progress
        about = {
            "kind": kind,
            "seed": seed,
            "onset": chosen.onset,
            "start_dev_em": progress.start_dev_em,
            "commit": commit(),
            "profile": json_digest(profile.model_dump(mode="json")),
            "processor_s": round(time.process_time() - started, 1),
            "error": error,
        }
        lines = [json.dumps(row) for row in (about, *map(_rounded, progress.history))]
    path = path_of(out, kind, seed)
    write_whole(path, "".join(f"{line}\n" for line in lines))
    return path


def _rounded(row: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.6g}") for name, value in row.items()}


def read_history(path: Path) -> History:
    """Read a run that `run_one` kept."""
    about, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return History(
        about["kind"], about["seed"], about["onset"], about["start_dev_em"] or 0.0, rows, about
    )


def kept_histories(out: Path) -> list[History]:
    """Return all kept runs, by kind in the table's order and by seed."""
    found = [read_history(path) for path in sorted(out.glob("*-*.jsonl"))]
    order = list(KINDS)
    return sorted(found, key=lambda one: (order.index(one.kind), one.seed))

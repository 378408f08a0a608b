"""Trains one run of the library, and keeps its history as JSON lines."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from espalier.records import NullTracker, json_digest, write_whole
from espalier.records.errors import TrainingError
from espalier.records.notices import Notice
from espalier.records.streams import STREAMS_FOLDER
from espalier.training.attempt_figures import attempt_figures
from espalier.training.checkpoint import CheckpointStore
from espalier.training.health import HealthMonitor, new_detectors
from espalier.training.parallel import load_whole_weights
from espalier.training.rl.loop import RlLoop
from espalier.training.rl.step_streams import StepStreams
from tests.benchmarks.failures.kinds import KINDS, changes_of
from tests.benchmarks.failures.world import HeldOut, build_loop, profile_of
from tests.benchmarks.keeping import commit


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
    profile = profile_of({"steps": steps, "evaluate_every": steps}, 0)
    with tempfile.TemporaryDirectory() as folder:
        change = changes_of(KINDS["healthy"])
        loop, _ = build_loop(profile, Path(folder), out / "warm", change)
        started = time.process_time()
        loop.run(NullTracker())
        step_s = (time.process_time() - started) / steps
        attempts, history = loop.progress.newest_attempts, loop.progress.history
    started, repeats = time.process_time(), 20
    for _ in range(repeats):
        attempt_figures(attempts, offers_tools=True)
    figures_s = (time.process_time() - started) / repeats
    monitor = HealthMonitor(new_detectors(profile.training), time.time)
    started, rows = time.process_time(), 0
    for _ in range(40):  # detectors of a run of some hundred steps
        for row in history:
            monitor.observe(row, attempts)
            rows += 1
    return Cost(step_s, figures_s, (time.process_time() - started) / rows)


def _of_last_weights(loop: RlLoop, heldout: HeldOut, folder: Path) -> float | None:
    """Return the sampled score of the weights of the last step, not of the best dev score."""
    checkpoint = CheckpointStore(folder, "run").load()
    if checkpoint is None:
        return None
    load_whole_weights(loop.parts.models.policy.model, checkpoint.model)
    return heldout.sampled()


class KeptStreams(StepStreams):
    """Writes what `espalier ui` opens, and keeps notices beside."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir / "trained_policy" / STREAMS_FOLDER)
        self.notices: list[Notice] = []

    def add_notices(self, notices: Sequence[Notice]) -> None:
        """Write and keep them."""
        super().add_notices(notices)
        self.notices += notices


def run_one(
    kind: str,
    seed: int,
    out: Path,
    *,
    settings: Mapping[str, Any],
    name: str,
    model: str | None = None,
    shown: Path | None = None,
) -> Path:
    """Train one run, and keep its history.

    A run that ends with an error of training keeps the steps before it, and has no final score.

    Args:
        kind: what goes wrong.
        seed: of the run.
        out: folder of the warm policies, and of the library's runs.
        settings: keys of [training].
        name: of the run's file, below `out`.
        model: name of the language model to train; None: the small policy.
        shown: folder to write as a run for `espalier ui`, too.
    """
    chosen = KINDS[kind]
    profile = profile_of(dict(settings), seed, model)
    started, error = time.process_time(), ""
    if shown is not None:
        write_whole(shown / "profile.json", profile.model_dump_json())
    with tempfile.TemporaryDirectory() as folder:
        loop, heldout = build_loop(profile, Path(folder), out / "warm", changes_of(chosen))
        loop.parts.streams = streams = KeptStreams(shown or Path(folder))
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
            "kept": None if error else heldout.sampled(),
            "kept_step": progress.best_step,
            "last": None if error else _of_last_weights(loop, heldout, Path(folder)),
            "notices": [(one.step, one.detector, one.action) for one in streams.notices],
            "commit": commit(),
            "profile": json_digest(profile.model_dump(mode="json")),
            "processor_s": round(time.process_time() - started, 1),
            "error": error,
        }
        lines = [json.dumps(row) for row in (about, *map(_rounded, progress.history))]
    path = out / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(f"{line}\n" for line in lines))
    return path


def _rounded(row: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.6g}") for name, value in row.items()}

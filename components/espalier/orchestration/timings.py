"""Seconds and peak memory by stage, added up over the attempts of a run: RUN/timings.json.

{"train": {"seconds": 302.4, "peak_rss_mb": 911.0}, ...}
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from espalier.orchestration.run_directory import write_atomically
from espalier.records import ArtifactError
from espalier.steps.usage import Usage, UsageMeter

TIMINGS_NAME = "timings.json"
BEAT_S = 2.0
"""How often a running stage's figures are written: a SIGKILL loses at most this much of them."""


class Timings:
    """The table of one run folder; a file that does not parse counts as empty."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / TIMINGS_NAME
        self._usage_by_stage = _read(self._path)

    def forget(self, stage: str) -> None:
        """Drop what earlier attempts cost: the stage starts from nothing."""
        self._usage_by_stage.pop(stage, None)

    def record(self, stage: str, usage: Usage) -> None:
        """Set a stage's figures and write the table."""
        self._usage_by_stage[stage] = usage
        table = {name: asdict(figures) for name, figures in self._usage_by_stage.items()}
        write_atomically(self._path, json.dumps(table, indent=2) + "\n")

    @contextmanager
    def measuring(self, stage: str) -> Iterator[None]:
        """Measure the block, on top of what earlier attempts at `stage` cost."""
        meter, before = UsageMeter(), self._usage_by_stage.get(stage, Usage(0.0, 0.0))
        ended = threading.Event()
        beat = threading.Thread(target=self._beat, args=(stage, meter, before, ended), daemon=True)
        beat.start()
        try:
            yield
        finally:
            ended.set()
            beat.join()
            self.record(stage, _added(before, meter.read()))

    def _beat(self, stage: str, meter: UsageMeter, before: Usage, ended: threading.Event) -> None:
        while not ended.wait(BEAT_S):
            try:
                self.record(stage, _added(before, meter.read()))
            except ArtifactError:
                return  # a full disk is the stage's to report, in its own words


def _added(before: Usage, now: Usage) -> Usage:
    return Usage(
        seconds=round(before.seconds + now.seconds, 3),
        peak_rss_mb=round(max(before.peak_rss_mb, now.peak_rss_mb), 1),
    )


def _read(path: Path) -> dict[str, Usage]:
    try:
        table = json.loads(path.read_bytes())
        return {stage: Usage(**figures) for stage, figures in table.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}

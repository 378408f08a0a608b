"""The stages of a run in order, each with what it took and what it left."""

from __future__ import annotations

from dataclasses import dataclass

from espalier.chain import STAGES
from espalier.reporting.formats import NOT_RUN, duration, memory, number, words
from espalier.reporting.run_directory import RunDirectory

_SHOWN_ROWS = 3
"""Row counts that are shown of a stage; the table of digests lists all."""


@dataclass(frozen=True, slots=True)
class StageBox:
    """One stage as the page shows it."""

    title: str
    ran: bool
    cost: str
    lines: tuple[str, ...]
    percent: float
    """The stage's share of the run's time, 0-100."""


def stage_boxes(run: RunDirectory) -> tuple[StageBox, ...]:
    """Every stage of the chain, whether it ran or not."""
    seconds = {stage: float(run.measured(stage).get("seconds") or 0.0) for stage in run.artifacts}
    total = sum(seconds.values()) or 1.0
    return tuple(_box(run, stage, 100 * seconds.get(stage, 0.0) / total) for stage in STAGES)


def _box(run: RunDirectory, stage: str, percent: float) -> StageBox:
    artifact = run.artifacts.get(stage)
    if artifact is None:
        stopped = stage == "validate" and run.failed_validation is not None
        return StageBox(
            title=words(stage),
            ran=False,
            cost="stopped the run" if stopped else NOT_RUN,
            lines=(),
            percent=0.0,
        )
    measured = run.measured(stage)
    cost = (duration(measured.get("seconds")), memory(measured.get("peak_rss_mb")))
    counts = list(artifact.manifest.rows.items())[:_SHOWN_ROWS]
    return StageBox(
        title=words(stage),
        ran=True,
        cost=", ".join(part for part in cost if part),
        lines=tuple(f"{number(count)} {words(name)}" for name, count in counts),
        percent=round(percent, 1),
    )

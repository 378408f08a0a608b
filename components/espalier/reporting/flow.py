"""The picture of the flow: one box per stage, with what it took and what it left."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from espalier.chain import STAGES
from espalier.reporting.formats import NOT_RUN, duration, memory, number, words
from espalier.reporting.run_directory import RunDirectory

_COLUMNS = 5
_WIDTH, _HEIGHT = 188, 104
_GAP_X, _GAP_Y = 24, 44
_SHOWN_ROWS = 3
"""Row counts that fit into a box; the table of digests lists all."""


@dataclass(frozen=True, slots=True)
class Box:
    """One stage, placed."""

    title: str
    x: int
    y: int
    ran: bool
    cost: str
    lines: tuple[str, ...]
    bar: float
    """Width of the bar that shows the stage's share of the run's time."""
    share: str


@dataclass(frozen=True, slots=True)
class Flow:
    """Boxes in the order in which the data flows, and the arrows between them."""

    width: int
    height: int
    box_width: int
    box_height: int
    boxes: tuple[Box, ...]
    arrows: tuple[str, ...]
    """SVG path data, each ending where an arrow head belongs."""
    description: str


def lay_out(run: RunDirectory) -> Flow:
    """Place the stages in rows of five, read from left to right."""
    seconds = {stage: float(run.measured(stage).get("seconds") or 0.0) for stage in run.artifacts}
    total = sum(seconds.values())
    stages = list(STAGES)
    boxes = tuple(
        _box(run, stage, place, seconds.get(stage, 0.0) / total if total else 0.0)
        for place, stage in enumerate(stages)
    )
    rows = -(-len(stages) // _COLUMNS)
    told = "; ".join(f"{box.title}: {', '.join((box.cost, *box.lines))}" for box in boxes)
    return Flow(
        width=_COLUMNS * _WIDTH + (_COLUMNS - 1) * _GAP_X,
        height=rows * _HEIGHT + (rows - 1) * _GAP_Y,
        box_width=_WIDTH,
        box_height=_HEIGHT,
        boxes=boxes,
        arrows=tuple(_arrow(a, b) for a, b in pairwise(boxes)),
        description=f"Stages of the run in order. {told}",
    )


def _box(run: RunDirectory, stage: str, place: int, share: float) -> Box:
    artifact = run.artifacts.get(stage)
    row, column = divmod(place, _COLUMNS)
    stopped = stage == "validate" and run.failed_validation is not None
    cost, lines = "stopped the run" if stopped else NOT_RUN, ()
    if artifact is not None:
        measured = run.measured(stage)
        cost = ", ".join(
            part
            for part in (duration(measured.get("seconds")), memory(measured.get("peak_rss_mb")))
            if part
        )
        counts = list(artifact.manifest.rows.items())
        lines = tuple(f"{number(count)} {words(name)}" for name, count in counts[:_SHOWN_ROWS])
    return Box(
        title=words(stage),
        x=column * (_WIDTH + _GAP_X),
        y=row * (_HEIGHT + _GAP_Y),
        ran=artifact is not None,
        cost=cost,
        lines=lines,
        bar=round(share * (_WIDTH - 24), 1),
        share=f"{100 * share:.0f} %" if artifact is not None and share else "",
    )


def _arrow(start: Box, end: Box) -> str:
    if start.y == end.y:
        middle = start.y + _HEIGHT // 2
        return f"M{start.x + _WIDTH + 2} {middle}H{end.x - 4}"
    turn = start.y + _HEIGHT + _GAP_Y // 2
    below, above = start.x + _WIDTH // 2, end.x + _WIDTH // 2
    return f"M{below} {start.y + _HEIGHT + 2}V{turn}H{above}V{end.y - 4}"

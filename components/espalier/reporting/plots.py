"""Figures as functions of a table. Nothing is smoothed; rates start at 0."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from espalier.reporting.columns import FloatArray, measured, numbers
from espalier.reporting.palette import BAND, GRID, INK, MUTED, SERIES, STYLE

POLICIES = ("untrained", "warm_start", "trained")
_PANEL = (3.6, 2.3)
"""Inches; a wide figure is as wide as three panels, so that text has one size on the page."""


class Width(enum.Enum):
    """Where a figure stands: across the page, or on a phone."""

    WIDE = (10.8, 2.9)
    NARROW = (3.6, 3.0)


@dataclass(frozen=True, slots=True)
class Curve:
    """One column of a history against optimizer steps."""

    column: str
    title: str
    unit: str
    is_rate: bool = False
    """Drawn on an axis from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """What is counted, and in which unit its lengths are."""

    title: str
    unit: str


WARM_START_CURVES = (
    Curve("loss", "Loss", "nats per action token"),
    Curve("dev_em", "Dev exact match", "EM, 0-1", is_rate=True),
)
PRETRAINING_CURVES = (Curve("loss", "Loss", "nats per token"),)
GRPO_CURVES = (
    Curve("reward", "Reward", "mean per trajectory"),
    Curve("pass_rate", "Pass rate", "share of trajectories, 0-1", is_rate=True),
    Curve("dev_em", "Dev exact match", "EM, 0-1", is_rate=True),
    Curve("entropy", "Entropy", "nats per action token"),
    Curve("clipped_share", "Clipped tokens", "share of action tokens"),
    Curve("zero_variance_share", "Zero-variance groups", "share of groups, 0-1", is_rate=True),
    Curve("tool_calls", "Tool calls", "mean per trajectory"),
    Curve("mismatch_kl", "Mismatch KL", "nats, engine to trainer"),
)


def plot_curve(history: pd.DataFrame, curve: Curve, borders: Sequence[int] = ()) -> Figure:
    """One quantity against optimizer step; measured now and then, it is drawn with markers.

    Args:
        history: columns `step` and `curve.column`; null where a step did not measure it.
        curve: which column, and how it is labelled.
        borders: steps after which another phase began, each drawn as an upright line.
    """
    points = measured(history, "step", curve.column)
    with rc_context(STYLE):
        figure = Figure(figsize=_PANEL, layout="constrained")
        axes = figure.add_subplot()
        is_sparse = len(points.y) < len(history) or len(points.y) == 1
        axes.plot(
            points.x,
            points.y,
            color=SERIES[2],
            marker="o" if is_sparse else "",
            markersize=3.5,
        )
        for last_step in borders:
            axes.axvline(last_step + 0.5, color=MUTED, linewidth=0.8, linestyle="--")
        axes.set_title(curve.title)
        axes.set_xlabel("optimizer step")
        axes.set_ylabel(curve.unit)
        axes.set_xlim(0, 1.02 * max(float(numbers(history, "step").max()), 1.0))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        _start_at_zero(axes, points.y, top=1.0 if curve.is_rate else None)
    return figure


def plot_pass_rate_histogram(
    bins: pd.DataFrame, band: tuple[float, float] | None, width: Width = Width.WIDE
) -> Figure:
    """How many tasks have which pass rate, kept and left out, with the kept band shaded.

    Args:
        bins: columns `pass_rate` (centre, 0-1), `kept` and `left_out` (tasks), evenly spaced.
        band: pass rates inside it are kept; None where the profile names none.
        width: where it stands.
    """
    centres = numbers(bins, "pass_rate")
    bar = 0.6 * (centres[1] - centres[0]) if len(centres) > 1 else 0.1
    with rc_context(STYLE):
        figure = Figure(figsize=width.value, layout="constrained")
        axes = figure.add_subplot()
        if band is not None:
            axes.axvspan(*band, color=BAND, linewidth=0, label=f"kept band {band[0]:g}-{band[1]:g}")
        kept, left_out = numbers(bins, "kept"), numbers(bins, "left_out")
        axes.bar(centres, kept, bar, color=SERIES[2], label="kept")
        axes.bar(
            centres,
            np.where(left_out > 0, left_out, np.nan),
            bar,
            bottom=kept,
            color=GRID,
            edgecolor=SERIES[0],
            hatch="//",
            linewidth=0.7,
            label="left out",
        )
        axes.set_xlim(-bar, 1 + bar)
        axes.set_xticks(centres)
        axes.set_xlabel("pass rate of the warm-started policy, 0-1")
        axes.set_ylabel("tasks")
        axes.grid(visible=False, axis="x")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_ylim(0, max(1.0, 1.08 * float((kept + left_out).max())))
        figure.legend(loc="outside upper right", ncols=3, columnspacing=1.0)
    return figure


def plot_histogram(bins: pd.DataFrame, shown: Histogram) -> Figure:
    """How many rows have which length.

    Args:
        bins: columns `length` (the least of a bin), `width` and `rows`, one row a bin.
        shown: how it is labelled.
    """
    widths = numbers(bins, "width")
    rows = numbers(bins, "rows")
    with rc_context(STYLE):
        figure = Figure(figsize=_PANEL, layout="constrained")
        axes = figure.add_subplot()
        # a bar is centred on the lengths that it counts: the bin of 4 and 5 stands on 4.5
        centres = numbers(bins, "length") + (widths - 1) / 2
        axes.bar(centres, rows, 0.86 * widths, color=SERIES[2])
        axes.set_title(shown.title)
        axes.set_xlabel(shown.unit)
        axes.set_ylabel("rows")
        axes.grid(visible=False, axis="x")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        _start_at_zero(axes, rows, top=None)
    return figure


def plot_exact_match(scores: pd.DataFrame, width: Width = Width.WIDE) -> Figure:
    """Held-out EM by group of questions, one bar per policy.

    Args:
        scores: columns `group` (str) and one per policy of `POLICIES` (EM 0-1, null where absent).
        width: where it stands.
    """
    shown = [p for p in POLICIES if p in scores and np.isfinite(numbers(scores, p)).any()]
    bar = 0.8 / max(len(shown), 1)
    places = np.arange(len(scores))
    with rc_context(STYLE):
        figure = Figure(figsize=width.value, layout="constrained")
        axes = figure.add_subplot()
        for number, policy in enumerate(shown):
            series = POLICIES.index(policy)
            bars = axes.bar(
                places + (number - (len(shown) - 1) / 2) * bar,
                np.nan_to_num(numbers(scores, policy)),
                0.92 * bar,
                color=SERIES[series],
                label=policy.replace("_", " "),
            )
            labels = [
                f"{100 * em:.0f}" if np.isfinite(em) else "" for em in numbers(scores, policy)
            ]
            axes.bar_label(bars, labels, padding=1.5, fontsize=7, color=INK)
        axes.set_xticks(places, [str(group) for group in scores["group"]])
        axes.set_ylim(0, 1)
        axes.set_ylabel("EM, 0-1 (labels in %)")
        axes.grid(visible=False, axis="x")
        figure.legend(loc="outside upper right", ncols=3, columnspacing=1.0)
    return figure


def pass_rate_bins(pass_rates: pd.DataFrame) -> pd.DataFrame:
    """Count tasks by pass rate, kept and left out; as many bins as attempts give, ten at most.

    Args:
        pass_rates: columns `attempts`, `pass_rate` (0-1), `kept` (bool); one row a task.

    Returns:
        Columns `pass_rate`, `kept`, `left_out`; one row a bin, empty bins included.
    """
    steps = int(np.clip(numbers(pass_rates, "attempts").max(initial=1), 1, 10))
    nearest = np.rint(numbers(pass_rates, "pass_rate") * steps)
    kept = numbers(pass_rates, "kept") > 0
    return pd.DataFrame(
        {
            "pass_rate": [b / steps for b in range(steps + 1)],
            "kept": [int((kept & (nearest == b)).sum()) for b in range(steps + 1)],
            "left_out": [int((~kept & (nearest == b)).sum()) for b in range(steps + 1)],
        }
    )


def _start_at_zero(axes: Axes, values: FloatArray, top: float | None) -> None:
    """Zero is always on the axis; a reward below zero keeps its room."""
    low = min(float(values.min()), 0.0) if len(values) else 0.0
    if top is not None:
        axes.set_ylim(low, top)
    else:
        high = float(values.max()) if len(values) else 0.0
        axes.set_ylim(1.05 * low, 1.08 * high if high > 0 else 1.0)

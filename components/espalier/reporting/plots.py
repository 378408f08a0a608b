"""Figures as functions of a table, and their SVG. Nothing is smoothed; rates start at 0.

A figure is drawn once, in placeholder colours that `embed` replaces by variables of the stylesheet,
which then differ between light, dark and print.
"""

from __future__ import annotations

import base64
import enum
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from espalier.records.step_figures import STEP_FIGURES
from espalier.reporting.comparison import POLICIES
from espalier.reporting.tables import FloatArray, measured, numbers

INK = "#010101"
MUTED = "#010102"
GRID = "#010103"
SERIES = ("#010111", "#010112", "#010113")
"""Untrained, warm start, trained; light to dark when printed in grey."""

VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    **{color: f"var(--series-{number})" for number, color in enumerate(SERIES, start=1)},
}
"""Placeholder colour -> the stylesheet's variable."""

STYLE: dict[Any, Any] = {  # matplotlib types its keys as a closed list
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",
}
"""Matplotlib settings of every figure; fonttype none keeps text as text, so it can be searched."""


_PANEL = (3.6, 2.3)
"""Inches. A wide figure is three panels wide, so text has the same size in both."""


class Width(enum.Enum):
    """Size in inches: across the page, or on a phone."""

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


WARM_START_CURVES = (
    Curve("loss", "Loss", "nats per action token"),
    Curve("dev_em", "Dev exact match", "EM, 0-1", is_rate=True),
)
PRESTAGE_CURVES = (Curve("loss", "Loss", "nats per trained token"),)
PRETRAINING_CURVES = (Curve("loss", "Loss", "nats per token"),)
GRPO_CURVES = tuple(
    Curve(column, title, STEP_FIGURES[column].scale, is_rate=is_rate)
    for column, title, is_rate in (
        ("reward", "Reward", False),
        ("pass_rate", "Pass rate", True),
        ("dev_em", "Dev exact match", True),
        ("entropy", "Entropy", False),
        ("clipped_share", "Clipped tokens", False),
        ("zero_variance_share", "Groups of equal rewards", True),
        ("equal_outcomes_share", "Groups of equal outcomes", True),
        ("tool_calls", "Tool calls", False),
        ("mismatch_kl", "Mismatch KL", False),
    )
)


def plot_curve(history: pd.DataFrame, curve: Curve, phase_ends: Sequence[int] = ()) -> Figure:
    """One quantity against optimizer step, with markers if some steps did not measure it.

    Args:
        history: columns `step` and `curve.column`; null where a step did not measure it.
        curve: the column and its labels.
        phase_ends: steps after which another phase began, each drawn as a vertical line.
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
        for last_step in phase_ends:
            axes.axvline(last_step + 0.5, color=MUTED, linewidth=0.8, linestyle="--")
        axes.set_title(curve.title)
        axes.set_xlabel("optimizer step")
        axes.set_ylabel(curve.unit)
        axes.set_xlim(0, 1.02 * max(float(numbers(history, "step").max()), 1.0))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        _start_at_zero(axes, points.y, top=1.0 if curve.is_rate else None)
    return figure


def plot_exact_match(
    scores: pd.DataFrame,
    width: Width = Width.WIDE,
    titles: Mapping[str, str] = MappingProxyType({}),
) -> Figure:
    """Held-out EM by group of questions, one bar per policy.

    Args:
        scores: columns `group` (str) and one per policy of `POLICIES` (EM 0-1, null where absent).
        width: page or phone.
        titles: policy -> its name in the legend, where that is another.
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
                label=titles.get(policy, policy.replace("_", " ")),
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


def _start_at_zero(axes: Axes, values: FloatArray, top: float | None) -> None:
    """Set the limits so that 0 is on the axis, and negative values as well."""
    low = min(float(values.min()), 0.0) if len(values) else 0.0
    if top is not None:
        axes.set_ylim(low, top)
    else:
        high = float(values.max()) if len(values) else 0.0
        axes.set_ylim(1.05 * low, 1.08 * high if high > 0 else 1.0)


_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}
_MAX_SHOWN_ROWS = 400


@dataclass(frozen=True, slots=True)
class Table:
    """The table behind a figure, as cells and as a download."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Cells as text; at most 400 rows, the download has all."""
    total_rows: int
    file_name: str
    data_uri: str
    """The whole table as CSV."""


def embed(figure: Figure, name: str, description: str) -> Markup:
    """The figure as an inline `<svg>`, equal bytes for equal figures.

    Args:
        figure: drawn in the placeholder colours.
        name: unique in the page; every id starts with it.
        description: the text for a reader who cannot see the figure.
    """
    stream = io.StringIO()
    with rc_context({**STYLE, "svg.hashsalt": name}):
        FigureCanvasSVG(figure).print_svg(stream, metadata=_NO_METADATA)
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    # An HTML parser knows both namespaces without a URL, and the page should contain no URL.
    svg = re.sub(r"\s(xmlns(:\w+)?)=\"[^\"]*\"", "", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\bid=\"", f'id="{name}-', svg)
    svg = re.sub(r"(href=\"|url\()#", rf"\1#{name}-", svg)
    for placeholder, variable in VARIABLES.items():
        svg = svg.replace(placeholder, variable)
    svg = svg.replace("'DejaVu Sans'", "var(--font)")
    head = f'<svg role="img" aria-label="{escape(description)}"'
    svg = re.sub(r"\s(width|height)=\"[\d.]+pt\"", "", svg, count=2)
    return Markup(svg.replace("<svg", head, 1).strip())  # the label alone is foreign; it is escaped


def downloadable(table: pd.DataFrame, file_name: str) -> Table:
    """The table as text cells and as a CSV in a data: URI."""
    csv = base64.b64encode(table.to_csv(index=False).encode()).decode()
    rows = table.head(_MAX_SHOWN_ROWS).itertuples(index=False, name=None)
    return Table(
        columns=tuple(str(column) for column in table.columns),
        rows=tuple(tuple(_cell(value) for value in row) for row in rows),
        total_rows=len(table),
        file_name=file_name,
        data_uri=f"data:text/csv;charset=utf-8;base64,{csv}",
    )


def _cell(value: object) -> str:
    if pd.isna(value):  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues] (a scalar)
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)

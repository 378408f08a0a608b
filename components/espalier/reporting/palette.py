"""Colours of the figures: written as stand-ins, replaced by the page's own (light, dark, print).

A figure is drawn once; the page's stylesheet decides what ink, grid and series look like. The
stand-ins are colours that no figure means literally.
"""

from __future__ import annotations

from typing import Any

INK = "#010101"
MUTED = "#010102"
GRID = "#010103"
BAND = "#010104"
SERIES = ("#010111", "#010112", "#010113")
"""One colour per series in fixed order: untrained, warm start, trained; light to dark in grey."""

VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    BAND: "var(--band)",
    **{color: f"var(--series-{number})" for number, color in enumerate(SERIES, start=1)},
}
"""Stand-in -> the stylesheet's variable."""

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
    "hatch.linewidth": 0.7,
    "svg.fonttype": "none",
}
"""Matplotlib settings of every figure; text stays text, so that it can be read and searched."""

"""The table and the plot of rollout cost against size."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from tests.benchmarks.rollout_cost import Point

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
"""Okabe and Ito (2008): told apart by colour-blind readers, and in grey with the markers."""
MARKERS = ("o", "s", "^", "D", "v")


def print_table(points: Sequence[Point], left_out: Mapping[str, float]) -> None:
    """All points, and what did not fit."""
    print("\nmodel  parameters   rows  context     tok/s  ms/step  read tok/s  cache_mb  rss_mb")
    for p in sorted(points, key=lambda p: (p.parameters, p.context, p.rows)):
        print(
            f"{p.size:5s}  {p.parameters:10d}  {p.rows:5d}  {p.context:7d}  {p.tokens_per_s:8.0f}"
            f"  {p.ms_per_step:7.2f}  {p.read_tokens_per_s:10.0f}  {p.cache_mb:8.0f}"
            f"  {p.peak_rss_mb:6.0f}"
        )
    if left_out:
        named = ", ".join(f"{name} ({mb / 1024:.0f} GB)" for name, mb in left_out.items())
        print(f"left out, keys and values do not fit: {named}")


def headline(points: Sequence[Point]) -> dict[str, object]:
    """Range over all points, and the table's corners by name."""
    rates = {f"{p.size} {p.rows}x{p.context}": p.tokens_per_s for p in points}
    return {
        "benchmark": "rollout_cost",
        "points": len(points),
        "tokens_per_s": rates,
    }


def cost_figure(points: Sequence[Point]) -> Figure:
    """Tokens a second against rows: a panel for each context, a line for each model."""
    contexts = sorted({p.context for p in points})
    sizes = sorted({p.size for p in points}, key=lambda size: float(size[:-1]))
    figure = Figure(figsize=(3.4 * max(1, len(contexts)), 3.6), layout="constrained")
    axes = figure.subplots(1, max(1, len(contexts)), sharey=True, squeeze=False)[0]
    for axis, context in zip(axes, contexts, strict=False):
        for number, size in enumerate(sizes):
            line = sorted(
                (p for p in points if p.size == size and p.context == context),
                key=lambda p: p.rows,
            )
            axis.plot(
                [p.rows for p in line],
                [p.tokens_per_s for p in line],
                marker=MARKERS[number],
                color=COLOURS[number],
                label=f"{line[0].parameters / 1e6:.1f} M parameters" if line else None,
            )
        axis.set(xscale="log", yscale="log", xlabel="rows", title=f"context {context} tokens")
        axis.set_xticks(sorted({p.rows for p in points}))
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("sampled tokens a second")
    axes[0].legend(fontsize="small")
    return figure


def draw(points: Sequence[Point], path: Path) -> None:
    """Write the plot beside the table that it is drawn from."""
    stream = io.StringIO()
    FigureCanvasSVG(cost_figure(points)).print_svg(stream, metadata={"Date": None})
    path.write_text(stream.getvalue())
    print(f"wrote {path} and {path.with_name('points.csv')}")

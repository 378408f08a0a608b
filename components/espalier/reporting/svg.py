"""Figures as SVG that can stand in a page beside others: unique ids, page colours, no metadata."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from espalier.reporting.palette import STYLE, VARIABLES

_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}
_MAX_SHOWN_ROWS = 400


@dataclass(frozen=True, slots=True)
class Table:
    """A table that figures were drawn from, to read and to download."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Cells as text; at most 400 rows, the rest is in the download."""
    total_rows: int
    file_name: str
    data_uri: str
    """The whole table as CSV."""


def embed(figure: Figure, name: str, description: str) -> Markup:
    """The figure as an inline `<svg>`, equal bytes for equal figures.

    Args:
        figure: drawn with the stand-in colours of `palette`.
        name: unique in the page; every id starts with it.
        description: what a reader who cannot see the figure is told.
    """
    stream = io.StringIO()
    with rc_context({**STYLE, "svg.hashsalt": name}):
        FigureCanvasSVG(figure).print_svg(stream, metadata=_NO_METADATA)
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    # Inside HTML the parser knows both namespaces; without them no address stands in the page.
    svg = re.sub(r"\s(xmlns(:\w+)?)=\"[^\"]*\"", "", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\bid=\"", f'id="{name}-', svg)
    svg = re.sub(r"(href=\"|url\()#", rf"\1#{name}-", svg)
    for stand_in, variable in VARIABLES.items():
        svg = svg.replace(stand_in, variable)
    svg = svg.replace("'DejaVu Sans'", "var(--font)")
    head = f'<svg role="img" aria-label="{escape(description)}"'
    svg = re.sub(r"\s(width|height)=\"[\d.]+pt\"", "", svg, count=2)
    return Markup(svg.replace("<svg", head, 1).strip())  # all ours but the label, escaped


def downloadable(table: pd.DataFrame, file_name: str) -> Table:
    """The table behind a figure, as text cells and as a CSV in a data: address."""
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

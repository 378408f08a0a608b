"""Tables of a report as data, without any layout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from espalier.reporting.formats import words
from espalier.reporting.run_directory import SPLITS

Value = str | int | float | None
"""What a cell holds; None where a column does not apply."""
TableKind = Literal["rows", "facts", "bars", "lines", "texts"]
FloatArray = NDArray[np.float64]

_ACCEPTED = "accepted"
_MOST_ROWS = 2000
"""Rows of a history; of a longer one every n-th is kept, and the last."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Rows with a name of their own, which is also that of a CSV file made of them."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    kind: TableKind = "rows"
    """How it is meant to be shown.

        rows     a table
        facts    two columns: a name, and what it is
        bars     a table whose numbers, but for those of the first column, are drawn as bars too
        lines    each column against the first one, the step
        texts    three columns: a title, a text that somebody or a model wrote, what is known of it
    """


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report."""

    title: str
    note: str
    """What the tables hold, or why there are none."""
    tables: tuple[ReportTable, ...] = ()


class Points(NamedTuple):
    """Measured values `y` at `x`."""

    x: FloatArray
    y: FloatArray


def numbers(table: pd.DataFrame, column: str) -> FloatArray:
    """A column as floats; null and non-numeric text become NaN."""
    return np.asarray(pd.to_numeric(table[column], errors="coerce"), dtype=np.float64)


def measured(table: pd.DataFrame, x: str, y: str) -> Points:
    """The rows in which `y` is a finite number."""
    values = numbers(table, y)
    finite = np.isfinite(values)
    return Points(numbers(table, x)[finite], values[finite])


def table_of(frame: pd.DataFrame, name: str, kind: TableKind = "rows") -> ReportTable:
    """A data frame as a table of at most 2,001 rows; NaN becomes None."""
    stride = -(-len(frame) // _MOST_ROWS) or 1
    places = sorted({*range(0, len(frame), stride), *([len(frame) - 1] if len(frame) else [])})
    return ReportTable(
        name=name if stride == 1 else f"{name}, one row of {stride}",
        columns=tuple(words(str(column)) for column in frame.columns),
        rows=tuple(tuple(map(_plain, row)) for row in frame.iloc[places].itertuples(index=False)),
        kind=kind,
    )


def count_table(title: str, counts: Mapping[str, Mapping[str, int]]) -> ReportTable:
    """Turn column -> name -> count into rows: splits in their order, frequent names first.

    Names that are numbers (hops) are sorted as numbers; `accepted` comes last.
    """
    columns = sorted(counts, key=lambda name: (SPLITS.index(name) if name in SPLITS else -1, name))
    totals: Counter[str] = Counter()
    for column in columns:
        totals.update(counts[column])
    numbered = all(name.isdecimal() for name in totals)
    names = sorted(
        totals,
        key=lambda name: (
            name == _ACCEPTED,
            int(name) if numbered else -totals[name],
            name,
        ),
    )
    rows = tuple((words(n), *(counts[c].get(n, 0) for c in columns)) for n in names)
    return ReportTable(title, ("name", *map(words, columns)), rows)


def _plain(value: object) -> Value:
    """A cell of a data frame as Python's own type."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if isinstance(value, str | int | float) else str(value)

"""Columns of a table as plain arrays: what is drawn and what is told of a figure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Points(NamedTuple):
    """Where a quantity was measured, and what it was."""

    x: FloatArray
    y: FloatArray


def numbers(table: pd.DataFrame, column: str) -> FloatArray:
    """A column as floats; null and text that is no number become NaN."""
    return np.asarray(pd.to_numeric(table[column], errors="coerce"), dtype=np.float64)


def measured(table: pd.DataFrame, x: str, y: str) -> Points:
    """The rows in which `y` was measured."""
    values = numbers(table, y)
    there = np.isfinite(values)
    return Points(numbers(table, x)[there], values[there])

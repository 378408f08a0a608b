"""The history table of a training stage: one row an optimizer step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_history(path: Path, rows: Sequence[dict[str, float]], columns: Sequence[str]) -> None:
    """Write `rows` as parquet: `columns` first, then by name what else some row has measured.

    A figure that a row lacks is null. Times are no part of it: the table is the same for every run
    of the same seed.
    """
    others = {name for row in rows for name in row}.difference(columns)
    names = [*columns, *sorted(others)]
    table = {name: pa.array([row.get(name) for row in rows], pa.float64()) for name in names}
    pq.write_table(pa.table(table), path)

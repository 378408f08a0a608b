"""Checks of a file of formalizations, one JSON value per line: faults and figures of its rows."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from espalier.records import DataError
from espalier.records.task import read_json_values
from espalier_search.synthesis.webshaper.notation import (
    EXPLANATIONS,
    WHOLE_ROW_KINDS,
    Fault,
    FaultKind,
    parse,
    read_entries,
)
from espalier_search.synthesis.webshaper.notation_checks import Structure, check, structure_of

FIELD = "formalization"


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """One row of a file: its line, its faults, and its structure if it has none."""

    line: int
    faults: tuple[Fault, ...]
    is_readable: bool
    """Whether every entry can be read, so that the row was also checked for `WHOLE_ROW_KINDS`."""
    structure: Structure | None


def check_file(path: Path) -> list[CheckedRow]:
    """Check every row of a JSON-lines file.

    Raises:
        DataError: the file cannot be read or is empty, or a line has no formalization.
    """
    checked: list[CheckedRow] = []
    for number, row in read_json_values(path):
        rows = _formalization(path, number, row)
        faults = check(rows)
        structure = None if faults else structure_of(parse(rows))
        checked.append(CheckedRow(number, faults, not read_entries(rows).faults, structure))
    if not checked:
        raise DataError(f"{path}: has no row")
    return checked


def rows_by_kind(checked: Iterable[CheckedRow]) -> dict[FaultKind, int]:
    """Kind of fault -> number of rows with at least one such fault."""
    counts = Counter(kind for row in checked for kind in {fault.kind for fault in row.faults})
    return {kind: counts[kind] for kind in FaultKind}


def structure_figures(structures: Sequence[Structure]) -> dict[str, dict[str, float]]:
    """Mean, median and maximum of every figure; empty if there are no rows."""
    return {
        name: {
            "mean": round(statistics.fmean(column), 2),
            "median": statistics.median(column),
            "max": max(column),
        }
        for name, column in zip(Structure._fields, zip(*structures, strict=True), strict=False)
    }


def table(checked: Sequence[CheckedRow]) -> str:
    """A text table: rows per kind of fault, then figures of the rows without fault."""
    structures = [row.structure for row in checked if row.structure is not None]
    num_readable = sum(row.is_readable for row in checked)
    lines = [f"{len(checked)} rows, {len(structures)} without fault"]
    if num_readable < len(checked):
        lines.append(
            f"{len(checked) - num_readable} rows have an entry that cannot be read; faults of the "
            f"whole row are counted in the other {num_readable}"
        )
    lines.append("")
    lines += [
        f"{number:6d}  {kind:24s}{EXPLANATIONS[kind]}"
        + (f" (of {num_readable} rows)" if kind in WHOLE_ROW_KINDS else "")
        for kind, number in rows_by_kind(checked).items()
        if number
    ]
    if structures:
        lines += ["", f"{'rows without fault':20s}{'mean':>8s}{'median':>8s}{'max':>6s}"]
    lines += [
        f"{name:20s}{figures['mean']:8.2f}{figures['median']:8.1f}{figures['max']:6.0f}"
        for name, figures in structure_figures(structures).items()
    ]
    return "\n".join(lines)


def figures(checked: Sequence[CheckedRow]) -> dict[str, object]:
    """The figures of `table` for JSON, with the faults of every row."""
    structures = [row.structure for row in checked if row.structure is not None]
    return {
        "rows": len(checked),
        "without_fault": len(structures),
        "rows_with_unreadable_entry": sum(not row.is_readable for row in checked),
        "judged_on_readable_rows_only": [
            kind.value for kind in FaultKind if kind in WHOLE_ROW_KINDS
        ],
        "rows_by_kind": {kind.value: number for kind, number in rows_by_kind(checked).items()},
        "structure": structure_figures(structures),
        "faults": {row.line: [str(fault) for fault in row.faults] for row in checked if row.faults},
    }


def _formalization(path: Path, number: int, row: object) -> object:
    """The formalization of a row, which may be a bare list."""
    if isinstance(row, list):
        return cast("list[object]", row)
    if not isinstance(row, dict) or FIELD not in row:
        raise DataError(
            f'{path}, line {number}: no "{FIELD}". Write a list of entries, or an object with '
            f'such a list under "{FIELD}".'
        )
    return cast("dict[str, object]", row)[FIELD]

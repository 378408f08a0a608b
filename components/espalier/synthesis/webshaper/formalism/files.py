"""A file of formalizations, one JSON object a line: faults and figures over all its rows."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from espalier.records import DataError
from espalier.synthesis.webshaper.formalism.checks import check
from espalier.synthesis.webshaper.formalism.entries import Fault, parse, read
from espalier.synthesis.webshaper.formalism.kinds import EXPLANATIONS, WHOLE_ROW_KINDS, Kind
from espalier.synthesis.webshaper.formalism.structure import Structure, structure_of

FIELD = "formalization"


@dataclass(frozen=True, slots=True)
class Checked:
    """One row: where it stands, its faults, and its figures where it has none."""

    line: int
    faults: tuple[Fault, ...]
    is_readable: bool
    """Every entry can be read; only then is the row judged by `WHOLE_ROW_KINDS`."""
    structure: Structure | None


def check_file(path: Path) -> list[Checked]:
    """Check every row of a JSON-lines file.

    Raises:
        DataError: a file that cannot be read, or a line that holds no formalization.
    """
    checked: list[Checked] = []
    for number, rows in _rows(path):
        faults = check(rows)
        structure = None if faults else structure_of(parse(rows))
        checked.append(Checked(number, faults, not read(rows).faults, structure))
    if not checked:
        raise DataError(f"{path}: holds no row")
    return checked


def rows_by_kind(checked: Iterable[Checked]) -> dict[Kind, int]:
    """Rows that have a fault of each kind at least once."""
    counts = Counter(kind for row in checked for kind in {fault.kind for fault in row.faults})
    return {kind: counts[kind] for kind in Kind}


def structure_figures(structures: Sequence[Structure]) -> dict[str, dict[str, float]]:
    """Mean, median and largest of every figure; nothing where there is no row."""
    return {
        name: {
            "mean": round(statistics.fmean(column), 2),
            "median": statistics.median(column),
            "max": max(column),
        }
        for name, column in zip(Structure._fields, zip(*structures, strict=True), strict=False)
    }


def table(checked: Sequence[Checked]) -> str:
    """Kinds of fault with their rows, then the figures of the rows without fault."""
    structures = [row.structure for row in checked if row.structure is not None]
    num_readable = sum(row.is_readable for row in checked)
    lines = [f"{len(checked)} rows, {len(structures)} without fault"]
    if num_readable < len(checked):
        lines.append(
            f"{len(checked) - num_readable} rows have an entry that cannot be read; kinds of the "
            f"whole row are judged on the other {num_readable}"
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


def figures(checked: Sequence[Checked]) -> dict[str, object]:
    """The same for machines, with the faults of every row."""
    structures = [row.structure for row in checked if row.structure is not None]
    return {
        "rows": len(checked),
        "without_fault": len(structures),
        "rows_with_unreadable_entry": sum(not row.is_readable for row in checked),
        "judged_on_readable_rows_only": [kind.value for kind in Kind if kind in WHOLE_ROW_KINDS],
        "rows_by_kind": {kind.value: number for kind, number in rows_by_kind(checked).items()},
        "structure": structure_figures(structures),
        "faults": {row.line: [str(fault) for fault in row.faults] for row in checked if row.faults},
    }


def _rows(path: Path) -> Iterator[tuple[int, object]]:
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, _formalization(path, number, line)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _formalization(path: Path, number: int, line: str) -> object:
    """What the row gives as its formalization; a bare list is one itself."""
    try:
        row: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: not JSON ({error})") from error
    if isinstance(row, list):
        return cast("list[object]", row)
    if not isinstance(row, dict) or FIELD not in row:
        raise DataError(
            f'{path}, line {number}: no "{FIELD}". Write a list of entries, or an object that has '
            f'one under "{FIELD}".'
        )
    return cast("dict[str, object]", row)[FIELD]

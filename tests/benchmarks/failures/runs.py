"""The kept histories of the library's runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.failures.kinds import KINDS

OUT = Path("runs/benchmarks/failures")


class History(NamedTuple):
    """A finished run."""

    kind: str
    seed: int
    onset: int
    """Step from which the failure acts; 0 of a healthy run."""
    start_dev_em: float
    rows: Sequence[Mapping[str, float]]
    about: Mapping[str, Any]


def path_of(out: Path, kind: str, seed: int) -> Path:
    """Return the file of a run."""
    return out / f"{kind}-{seed}.jsonl"


def read_history(path: Path) -> History:
    """Read a run that `run_one` kept."""
    about, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return History(
        about["kind"], about["seed"], about["onset"], about["start_dev_em"] or 0.0, rows, about
    )


def kept_histories(out: Path) -> list[History]:
    """Return all kept runs, by kind in the table's order and by seed."""
    found = [read_history(path) for path in sorted(out.glob("*-*.jsonl"))]
    order = list(KINDS)
    return sorted(found, key=lambda one: (order.index(one.kind), one.seed))

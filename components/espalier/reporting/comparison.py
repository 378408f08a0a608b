"""The before/after table: the same held-out questions, three policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from espalier.reporting.formats import (
    interval,
    number,
    percent,
    points,
    signed_interval,
    words,
)
from espalier.reporting.plots import POLICIES

Figures = Mapping[str, Any]
"""What results.json holds of one policy."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure, and the small print under it."""

    figure: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One measure for every policy, and trained minus warm start."""

    label: str
    cells: tuple[Cell, ...]
    change: Cell = Cell("")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Row groups (title, rows) in reading order."""

    policies: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Row, ...]], ...]


def compare(results: Mapping[str, Any]) -> Comparison:
    """Build the table out of results.json; a policy that was not evaluated stays in it, empty."""
    scores: Mapping[str, Figures] = results.get("eval", {})
    groups = [("All questions", _overall(scores))]
    for key, title in (("by_hops", "Exact match by hops"), ("by_family", "Exact match by family")):
        groups.append((title, _exact_match_rows(scores, key)))
    groups.append(("Why episodes ended", _finish_rows(scores)))
    return Comparison(
        policies=tuple(words(policy) for policy in POLICIES),
        groups=tuple((title, rows) for title, rows in groups if rows),
    )


def exact_match_table(results: Mapping[str, Any], key: str) -> pd.DataFrame:
    """EM of every policy by group, as the plot wants it.

    Returns:
        Columns `hops` (the group's name) and one per policy, EM 0-1, null where not evaluated.
    """
    scores = results.get("eval", {})
    return pd.DataFrame(
        [
            {"hops": group, **{p: _grouped(scores, p, key, group).get("em") for p in POLICIES}}
            for group in _groups(scores, key)
        ]
    )


def _overall(scores: Mapping[str, Figures]) -> tuple[Row, ...]:
    gain = scores.get("gain") or {}
    cells = tuple(
        Cell(percent(_of(scores, policy).get("em")), interval(_of(scores, policy).get("ci95")))
        for policy in POLICIES
    )
    change = Cell(points(gain.get("em")), signed_interval(gain.get("ci95")))
    rows = [Row("Exact match", cells, change), _row(scores, "F1", "f1", percent, points)]
    sampled = {
        key for policy in POLICIES for key in _of(scores, policy) if key.startswith("pass_at_")
    }
    for key in sorted(sampled, key=lambda name: int(name.rpartition("_")[2])):
        rows.append(_row(scores, f"pass@{key.rpartition('_')[2]}", key, percent, points))
    rows.append(_row(scores, "Tool calls per episode", "tool_calls", _decimal, _signed_decimal))
    rows.append(_row(scores, "Questions", "n", number, lambda _: ""))
    return tuple(rows)


def _row(
    scores: Mapping[str, Figures],
    label: str,
    key: str,
    shown: Callable[[Any], str],
    change_shown: Callable[[float], str],
) -> Row:
    cells = tuple(Cell(shown(_of(scores, policy).get(key))) for policy in POLICIES)
    before, after = (_of(scores, policy).get(key) for policy in ("warm_start", "trained"))
    if before is None or after is None:
        return Row(label, cells)
    return Row(label, cells, Cell(change_shown(after - before)))


def _exact_match_rows(scores: Mapping[str, Figures], key: str) -> tuple[Row, ...]:
    rows = []
    for group in _groups(scores, key):
        found = [_grouped(scores, policy, key, group) for policy in POLICIES]
        cells = tuple(Cell(percent(f.get("em")), _small_print(f)) for f in found)
        before, after = found[1].get("em"), found[2].get("em")
        change = "" if before is None or after is None else points(after - before)
        label = f"{group} hop{'' if group == '1' else 's'}" if key == "by_hops" else words(group)
        rows.append(Row(label, cells, Cell(change)))
    return tuple(rows)


def _finish_rows(scores: Mapping[str, Figures]) -> tuple[Row, ...]:
    found = [_of(scores, policy).get("finish_reasons") or {} for policy in POLICIES]
    reasons = sorted({reason for counts in found for reason in counts})
    return tuple(
        Row(words(reason), tuple(Cell(number(counts.get(reason, 0))) for counts in found))
        for reason in reasons
    )


def _small_print(figures: Figures) -> str:
    """Interval and number of questions; groups are small, so that their intervals matter."""
    told = (interval(figures.get("ci95")), f"n {number(figures.get('n'))}" if figures else "")
    return ", ".join(part for part in told if part)


def _of(scores: Mapping[str, Figures], policy: str) -> Figures:
    return scores.get(policy) or {}


def _groups(scores: Mapping[str, Figures], key: str) -> list[str]:
    return sorted({str(g) for policy in POLICIES for g in _of(scores, policy).get(key) or {}})


def _grouped(scores: Mapping[str, Figures], policy: str, key: str, group: str) -> Figures:
    return (_of(scores, policy).get(key) or {}).get(group) or {}


def _decimal(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _signed_decimal(value: float) -> str:
    return f"{value:+.2f}"

"""The before/after table: the same held-out questions, three policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from espalier.records import group_label, group_of, report_groups, shown_group
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
    for name, values in _groups(scores).items():
        groups.append((f"Exact match by {words(name)}", _exact_match_rows(scores, name, values)))
    groups.append(("Why episodes ended", _finish_rows(scores)))
    return Comparison(
        policies=tuple(words(policy) for policy in POLICIES),
        groups=tuple((title, rows) for title, rows in groups if rows),
    )


@dataclass(frozen=True, slots=True)
class GroupScores:
    """EM of every policy by the values of one group, such as hops."""

    name: str
    scores: pd.DataFrame
    """Columns `group` (a value in words) and one per policy, EM 0-1, null where not evaluated."""


def drawn_group(results: Mapping[str, Any]) -> GroupScores | None:
    """The group of questions that is drawn; None where the questions are not grouped."""
    scores = results.get("eval", {})
    group = shown_group(_of(scores, policy) for policy in POLICIES)
    if group is None:
        return None
    name, values = group
    found = {policy: group_of(_of(scores, policy), name) for policy in POLICIES}
    rows = [
        {
            "group": group_label(name, value),
            **{policy: found[policy].get(value, {}).get("em") for policy in POLICIES},
        }
        for value in values
    ]
    return GroupScores(words(name), pd.DataFrame(rows))


def _overall(scores: Mapping[str, Figures]) -> tuple[Row, ...]:
    gain = scores.get("gain") or {}
    cells = tuple(
        Cell(percent(_of(scores, policy).get("em")), interval(_of(scores, policy).get("ci95")))
        for policy in POLICIES
    )
    change = Cell(points(gain.get("em")), signed_interval(gain.get("ci95")))
    rows = [Row("Exact match", cells, change), _row(scores, "F1", "f1", percent, points)]
    for prefix, sign in (("pass_at_", "@"), ("pass_hat_", "^")):
        for k in _measured_k(scores, prefix):
            rows.append(_row(scores, f"pass{sign}{k}", f"{prefix}{k}", percent, points))
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


def _exact_match_rows(
    scores: Mapping[str, Figures], name: str, values: Sequence[str]
) -> tuple[Row, ...]:
    rows = []
    for value in values:
        found = [group_of(_of(scores, policy), name).get(value) or {} for policy in POLICIES]
        cells = tuple(Cell(percent(f.get("em")), _small_print(f)) for f in found)
        before, after = found[1].get("em"), found[2].get("em")
        change = "" if before is None or after is None else points(after - before)
        rows.append(Row(group_label(name, value), cells, Cell(change)))
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


def _groups(scores: Mapping[str, Figures]) -> dict[str, list[str]]:
    return report_groups(_of(scores, policy) for policy in POLICIES)


def _measured_k(scores: Mapping[str, Figures], prefix: str) -> list[int]:
    """K of the rates that some policy has; null means that too few answers were sampled."""
    found = {
        key
        for policy in POLICIES
        for key, rate in _of(scores, policy).items()
        if key.startswith(prefix) and rate is not None
    }
    return sorted(int(key.removeprefix(prefix)) for key in found)


def _decimal(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _signed_decimal(value: float) -> str:
    return f"{value:+.2f}"

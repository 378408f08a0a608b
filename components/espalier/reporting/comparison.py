"""The before/after table: three policies on the same held-out questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from espalier.records import (
    group_changes,
    group_label,
    group_of,
    policy_label,
    report_groups,
    shown_group,
)
from espalier.reporting.formats import (
    interval,
    number,
    percent,
    points,
    signed_interval,
    words,
)

POLICIES = ("untrained", "warm_start", "trained")

Figures = Mapping[str, Any]
"""One policy's figures in results.json."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure, and a note in small print under it."""

    figure: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class MeasureRow:
    """One measure for every policy, and trained minus warm start."""

    label: str
    cells: tuple[Cell, ...]
    change: Cell = Cell("")


@dataclass(frozen=True, slots=True)
class ComparisonTable:
    """Groups of rows, each with its title, in reading order."""

    policies: tuple[str, ...]
    groups: tuple[tuple[str, tuple[MeasureRow, ...]], ...]


def compare(results: Mapping[str, Any]) -> ComparisonTable:
    """Build the table from results.json; a policy that was not evaluated has empty cells."""
    scores: Mapping[str, Figures] = results.get("eval", {})
    groups = [("All questions", _overall(scores))]
    for name, values in _group_values(scores).items():
        groups.append((f"Exact match by {words(name)}", _exact_match_rows(scores, name, values)))
    groups.append(("Why episodes ended", _finish_rows(scores)))
    for name, suite in (results.get("suites") or {}).items():
        groups.append((f"Suite {name}: {words(suite['headline'])}", _suite_rows(suite)))
    return ComparisonTable(
        policies=tuple(policy_label(results, policy) for policy in POLICIES),
        groups=tuple((title, rows) for title, rows in groups if rows),
    )


@dataclass(frozen=True, slots=True)
class GroupScores:
    """EM of every policy by the values of one group, such as hops."""

    name: str
    scores: pd.DataFrame
    """Columns `group` (a value in words) and one per policy, EM 0-1, null where not evaluated."""


def drawn_group(results: Mapping[str, Any]) -> GroupScores | None:
    """Scores of the group that is drawn; None if the questions have no groups."""
    scores = results.get("eval", {})
    group = shown_group(_figures_of(scores, policy) for policy in POLICIES)
    if group is None:
        return None
    name, values = group
    found = {policy: group_of(_figures_of(scores, policy), name) for policy in POLICIES}
    rows = [
        {
            "group": group_label(name, value),
            **{policy: found[policy].get(value, {}).get("em") for policy in POLICIES},
        }
        for value in values
    ]
    return GroupScores(words(name), pd.DataFrame(rows))


def _overall(scores: Mapping[str, Figures]) -> tuple[MeasureRow, ...]:
    gain = scores.get("gain") or {}
    cells = tuple(
        Cell(
            percent(_figures_of(scores, policy).get("em")),
            interval(_figures_of(scores, policy).get("ci95")),
        )
        for policy in POLICIES
    )
    change = Cell(points(gain.get("em")), signed_interval(gain.get("ci95")))
    rows = [
        MeasureRow("Exact match, greedy", cells, change),
        *_knowledge_rows(scores),
    ]
    if any("f1" in _figures_of(scores, policy) for policy in POLICIES):
        rows.append(_measure_row(scores, "F1, greedy", "f1", percent, points))
    for prefix, sign in (("pass_at_", "@"), ("pass_hat_", "^")):
        for k in _measured_k(scores, prefix):
            label = f"pass{sign}{k}, sampled"
            rows.append(_measure_row(scores, label, f"{prefix}{k}", percent, points))
    if any("sampled_n" in _figures_of(scores, policy) for policy in POLICIES):
        rows.append(_measure_row(scores, "Questions sampled", "sampled_n", number, lambda _: ""))
    rows.append(
        _measure_row(scores, "Tool calls per episode", "tool_calls", _two_decimals, _signed_decimal)
    )
    rows.append(_measure_row(scores, "Questions", "n", number, lambda _: ""))
    for label, key in _LOSSES.items():
        if any(key in _figures_of(scores, policy) for policy in POLICIES):
            rows.append(_measure_row(scores, label, key, number, lambda _: ""))
    return tuple(rows)


def _knowledge_rows(scores: Mapping[str, Figures]) -> Iterator[MeasureRow]:
    """Each share that some policy has, with its interval."""
    for label, (key, counted) in _KNOWLEDGE.items():
        found = [_figures_of(scores, policy) for policy in POLICIES]
        if any(key in figures for figures in found):
            row = _measure_row(scores, label, key, _percent_or_dash, points)
            notes = [
                _small_print({"ci95": f.get(f"{key}_ci95"), "n": f.get(counted)}) for f in found
            ]
            cells = [
                replace(cell, note=note if key in figures else "")
                for cell, note, figures in zip(row.cells, notes, found, strict=True)
            ]
            yield replace(row, cells=tuple(cells))


_KNOWLEDGE = {
    "Exact match from memory, no tools": ("closed_book_em", "closed_book_n"),
    "Stated an answer from memory": ("closed_book_answered", "closed_book_n"),
    "Answers that a search had returned": ("grounded", "grounded_n"),
    "Right answers that a search had returned": ("grounded_right", ""),
    "Exact match of questions from triples": ("added_lines_em", "as_written_n"),
    "The same without the added lines": ("as_written_em", "as_written_n"),
}
"""Label -> key in results.json, and the key of the number of questions or answers behind it."""

_LOSSES = {
    "Episodes lost from outside, counted as wrong": "lost_episodes",
    "Episodes that broke their sandbox, wrong": "broke_sandbox_episodes",
}
"""Label -> key of results.json."""


def _measure_row(
    scores: Mapping[str, Figures],
    label: str,
    key: str,
    shown: Callable[[Any], str],
    change_shown: Callable[[float], str],
) -> MeasureRow:
    cells = tuple(Cell(shown(_figures_of(scores, policy).get(key))) for policy in POLICIES)
    before, after = (_figures_of(scores, policy).get(key) for policy in ("warm_start", "trained"))
    if before is None or after is None:
        return MeasureRow(label, cells)
    return MeasureRow(label, cells, Cell(change_shown(after - before)))


def _exact_match_rows(
    scores: Mapping[str, Figures], name: str, values: Sequence[str]
) -> tuple[MeasureRow, ...]:
    rows, changes = [], group_changes(_figures_of(scores, "gain"))
    for value in values:
        found = [
            group_of(_figures_of(scores, policy), name).get(value) or {} for policy in POLICIES
        ]
        cells = tuple(Cell(percent(f.get("em")), _small_print(f)) for f in found)
        before, after = found[1].get("em"), found[2].get("em")
        change = "" if before is None or after is None else points(after - before)
        changed = changes.get((name, value))
        note = ""
        if changed is not None and changed.has_fallen:
            note = f"fell, {signed_interval([changed.low, changed.high])}"
        rows.append(MeasureRow(group_label(name, value), cells, Cell(change, note)))
    return tuple(rows)


def _finish_rows(scores: Mapping[str, Figures]) -> tuple[MeasureRow, ...]:
    found = [_figures_of(scores, policy).get("finish_reasons") or {} for policy in POLICIES]
    reasons = sorted({reason for counts in found for reason in counts})
    return tuple(
        MeasureRow(words(reason), tuple(Cell(number(counts.get(reason, 0))) for counts in found))
        for reason in reasons
    )


def _suite_rows(suite: Mapping[str, Any]) -> tuple[MeasureRow, ...]:
    """Headline score of every policy, its number of tasks, and the reasons why attempts ended."""
    scores: Mapping[str, Figures] = suite["policies"]
    gain = suite.get("gain") or {}
    cells = tuple(_headline_cell(_figures_of(scores, policy)) for policy in POLICIES)
    is_paired = "mean" in gain
    change = Cell(points(gain["mean"]), signed_interval(gain["ci95"])) if is_paired else Cell("")
    rows = [MeasureRow("Score", cells, change)]
    for prefix, sign in (("pass_at_", "@"), ("pass_hat_", "^")):
        for k in _measured_k(scores, prefix):
            rows.append(_measure_row(scores, f"pass{sign}{k}", f"{prefix}{k}", percent, points))
    for label, key in _SUITE_COUNTS.items():
        rows.append(_measure_row(scores, label, key, number, lambda _: ""))
    ended = (MeasureRow(f"Ended: {row.label}", row.cells) for row in _finish_rows(scores))
    return (*rows, *ended)


def _headline_cell(figures: Figures) -> Cell:
    if figures and "headline" not in figures:
        return Cell("no task left")
    headline = figures.get("headline") or {}
    return Cell(percent(headline.get("mean")), interval(headline.get("ci95")))


_SUITE_COUNTS = {
    "Tasks counted": "n",
    "Tasks it was trained on, left out": "excluded",
    "Attempts lost from outside, counted as 0": "lost",
}


def _small_print(figures: Figures) -> str:
    """Interval and number of questions."""
    counted = number(figures.get("n"))
    parts = (interval(figures.get("ci95")), f"n {counted}" if counted else "")
    return ", ".join(part for part in parts if part)


def _figures_of(scores: Mapping[str, Figures], policy: str) -> Figures:
    return scores.get(policy) or {}


def _group_values(scores: Mapping[str, Figures]) -> dict[str, list[str]]:
    return report_groups(_figures_of(scores, policy) for policy in POLICIES)


def _measured_k(scores: Mapping[str, Figures], prefix: str) -> list[int]:
    """Each k that some policy has a rate for; null means that too few answers were sampled."""
    found = {
        key
        for policy in POLICIES
        for key, rate in _figures_of(scores, policy).items()
        if key.startswith(prefix) and rate is not None
    }
    return sorted(int(key.removeprefix(prefix)) for key in found)


def _percent_or_dash(rate: float | None) -> str:
    return "-" if rate is None else percent(rate)


def _two_decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _signed_decimal(value: float) -> str:
    return f"{value:+.2f}"

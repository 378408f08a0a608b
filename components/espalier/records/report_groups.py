"""Groups of questions in results.json: their names, order and labels.

A policy's figures hold one table for each group, as `by_hops` = {"1": {...}, "2": {...}}.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_PREFIX = "by_"
_NUMBER = re.compile(r"\d+(\.\d+)?")
_LEAST_QUESTIONS = 10
"""A smaller group is not reported as fallen: a bootstrap of so few has too narrow an interval."""


def report_groups(policies: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the values of each group by its name, in reading order, numbers by size.

    A group with one value is left out: its figures are those of all questions.

    Args:
        policies: the figures of each policy; a policy may lack groups or values.
    """
    found: dict[str, set[str]] = {}
    for figures in policies:
        for name, table in _groups_of(figures).items():
            found.setdefault(name, set()).update(table)
    return {name: sorted(values, key=_order) for name, values in found.items() if len(values) > 1}


def shown_group(policies: Iterable[Mapping[str, Any]]) -> tuple[str, list[str]] | None:
    """Return the group for a chart or line with room for only one: the first with numbers.

    Numbers measure difficulty.

    Returns:
        Its name and values; the first group if none has numbers, None without groups.
    """
    groups = report_groups(policies)
    numbered = (name for name, values in groups.items() if _NUMBER.fullmatch(values[0]))
    name = next(numbered, next(iter(groups), None))
    return None if name is None else (name, groups[name])


def group_of(figures: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the figures by value of one group of a policy; empty if the policy has none."""
    return _groups_of(figures).get(name) or {}


class GroupChange(NamedTuple):
    """EM (0-1) of one policy minus that of another on the questions of a group, paired."""

    label: str
    change: float
    low: float
    high: float
    questions: int

    @property
    def has_fallen(self) -> bool:
        """Whether the whole interval lies below 0."""
        return self.high < 0 and self.questions >= _LEAST_QUESTIONS

    def __str__(self) -> str:
        """Return one line, in points."""
        return (
            f"{self.label} {100 * self.change:+.1f} points "
            f"[{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        )


def group_changes(gain: Mapping[str, Any]) -> dict[tuple[str, str], GroupChange]:
    """Group name and value -> what the `gain` of results.json says of it, in reading order."""
    return {
        (name, value): _change(name, value, group_of(gain, name)[value])
        for name, values in report_groups([gain]).items()
        for value in values
    }


def _change(name: str, value: str, found: Mapping[str, Any]) -> GroupChange:
    low, high = found["ci95"]
    return GroupChange(group_label(name, value), found["em"], low, high, found["n"])


def group_label(name: str, value: str) -> str:
    """Return a value as words: "2 hops", "1 step", "level 3", "intersection"."""
    if not _NUMBER.fullmatch(value):
        return value.replace("_", " ")
    if not name.endswith("s"):
        return f"{name.replace('_', ' ')} {value}"
    return f"{value} {(name.removesuffix('s') if value == '1' else name).replace('_', ' ')}"


def policy_label(results: Mapping[str, Any], policy: str) -> str:
    """Return the name of a policy of results.json in tables and figures.

    The tiny policy is never untrained: it was taught to read, for many families by demonstrations
    under shuffled questions.
    """
    if policy == "untrained" and results.get("taught_to_read"):
        return "after reading"
    return policy.replace("_", " ")


def _groups_of(figures: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Group name -> its table of figures by value."""
    return {
        key.removeprefix(_PREFIX): table
        for key, table in figures.items()
        if key.startswith(_PREFIX)
    }


def _order(value: str) -> tuple[float, str]:
    return (float(value), "") if _NUMBER.fullmatch(value) else (0.0, value)

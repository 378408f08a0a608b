"""Groups of questions in results.json: which there are, in which order, and how they read.

A policy's figures hold one table for each group, as `by_hops` = {"1": {...}, "2": {...}}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_PREFIX = "by_"


def report_groups(policies: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Group name -> its values in reading order, numbers by size.

    A group of one value is left out: its figures are those of all questions.

    Args:
        policies: the figures of each policy; a policy may lack groups or values.
    """
    found: dict[str, set[str]] = {}
    for figures in policies:
        for key, table in figures.items():
            if key.startswith(_PREFIX):
                found.setdefault(key.removeprefix(_PREFIX), set()).update(table)
    return {name: sorted(values, key=_order) for name, values in found.items() if len(values) > 1}


def group_of(figures: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Value -> figures of one group of a policy; empty where the policy has none."""
    return figures.get(_PREFIX + name) or {}


def group_label(name: str, value: str) -> str:
    """A value as words: "2 hops", "1 step", "level 3", "intersection"."""
    if not value.isdecimal():
        return value.replace("_", " ")
    if not name.endswith("s"):
        return f"{name.replace('_', ' ')} {value}"
    return f"{value} {(name.removesuffix('s') if value == '1' else name).replace('_', ' ')}"


def _order(value: str) -> tuple[int, str]:
    return (int(value), "") if value.isdecimal() else (0, value)

"""The before/after table as plain cells, for a terminal or a README."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

POLICIES = ("untrained", "warm_start", "trained")


def results_table(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row a policy, and one for the gain of training; all rows have the same keys.

    Args:
        results: what results.json holds.
    """
    figures = results["eval"]
    name, groups = finest_grouping(figures)
    confidence = f"{results['bootstrap']['confidence']:.0%} interval"
    rows = []
    for policy in POLICIES:
        found = figures[policy]
        row = {
            "policy": policy.replace("_", " "),
            "EM %": _percent(found["em"]),
            confidence: _percents(found["ci95"]),
            "F1 %": _percent(found["f1"]),
            "pass@1 %": _percent(found["pass_at_1"]),
            "pass@4 %": _percent(found["pass_at_4"]),
            "tool calls": f"{found['tool_calls']:.2f}",
        }
        by_group = found.get(f"by_{name}", {})
        row |= {
            group_title(name, group): _percent(by_group.get(group, {}).get("em"))
            for group in groups
        }
        rows.append(row)
    gain = figures["gain"]
    last = dict.fromkeys(rows[0], "")
    last["policy"] = f"trained - {gain['baseline'].replace('_', ' ')}"
    last["EM %"] = f"{100 * gain['em']:+.1f}"
    last[confidence] = " to ".join(f"{100 * end:+.1f}" for end in gain["ci95"])
    return [*rows, last]


def finest_grouping(figures: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The last grouping of a family, which is its measure of difficulty, and all its groups."""
    names = [key.removeprefix("by_") for key in figures["trained"] if key.startswith("by_")]
    if not names:
        return "", []
    name = names[-1]
    found = {group for judged in figures.values() for group in judged.get(f"by_{name}", {})}
    return name, sorted(found, key=lambda group: (not group.isdigit(), group.zfill(9)))


def group_title(name: str, group: str) -> str:
    """A column's title: "2 hops %", "1 hop %" where groups are numbers, else the group itself."""
    if not group.isdigit():
        return f"{group} %"
    return f"{group} {name.removesuffix('s') if group == '1' else name} %"


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f}"


def _percents(ends: list[float]) -> str:
    return " to ".join(_percent(end) for end in ends)

"""The before/after table as plain cells, for a terminal or a README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from espalier.records import group_label, group_of, shown_group

POLICIES = ("untrained", "warm_start", "trained")


def results_table(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row a policy, and one for the gain of training; all rows have the same keys.

    Of the groups of questions that of difficulty is shown; the report has them all.

    Args:
        results: what results.json holds.
    """
    figures = results["eval"]
    policies = [figures[policy] for policy in POLICIES]
    confidence = f"{results['bootstrap']['confidence']:.0%} interval"
    rows = []
    for policy, found in zip(POLICIES, policies, strict=True):
        row = {
            "policy": policy.replace("_", " "),
            "EM %": _percent(found["em"]),
            confidence: _percents(found["ci95"]),
            "F1 %": _percent(found["f1"]),
        }
        row |= {f"pass@{k} %": _percent(found.get(f"pass_at_{k}")) for k in _measured_k(policies)}
        row |= {"tool calls": f"{found['tool_calls']:.2f}"}
        rows.append(row | group_columns(found, policies))
    gain = figures["gain"]
    last = dict.fromkeys(rows[0], "")
    last["policy"] = f"trained - {gain['baseline'].replace('_', ' ')}"
    last["EM %"] = f"{100 * gain['em']:+.1f}"
    last[confidence] = " to ".join(f"{100 * end:+.1f}" for end in gain["ci95"])
    return [*rows, last]


def group_columns(
    figures: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """EM of one policy by the group of questions that is shown of `policies`: title -> percent."""
    group = shown_group(policies)
    if group is None:
        return {}
    name, values = group
    found = group_of(figures, name)
    return {
        f"{group_label(name, value)} %": _percent(found.get(value, {}).get("em"))
        for value in values
    }


def _measured_k(policies: Sequence[Mapping[str, Any]]) -> list[int]:
    found = {key for policy in policies for key, rate in policy.items() if rate is not None}
    return sorted(int(key.rpartition("_")[2]) for key in found if key.startswith("pass_at_"))


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f}"


def _percents(ends: list[float]) -> str:
    return " to ".join(_percent(end) for end in ends)

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
    hops = sorted({hop for policy in POLICIES for hop in figures[policy]["by_hops"]}, key=int)
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
        row |= {_hop_title(hop): _percent(found["by_hops"].get(hop, {}).get("em")) for hop in hops}
        rows.append(row)
    gain = figures["gain"]
    last = dict.fromkeys(rows[0], "")
    last["policy"] = f"trained - {gain['baseline'].replace('_', ' ')}"
    last["EM %"] = f"{100 * gain['em']:+.1f}"
    last[confidence] = " to ".join(f"{100 * end:+.1f}" for end in gain["ci95"])
    return [*rows, last]


def _hop_title(hop: str) -> str:
    return f"{hop} hop %" if hop == "1" else f"{hop} hops %"


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f}"


def _percents(ends: list[float]) -> str:
    return " to ".join(_percent(end) for end in ends)

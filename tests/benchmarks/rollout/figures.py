"""What the rollout benchmark reports: a table for people, and the headline figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

Rows = Sequence[Mapping[str, float]]


def print_table(results: Mapping[str, Rows], matmul: Mapping[str, float]) -> None:
    """Tokens a second of every contestant and tool time, and how it stands to this engine."""
    print("\nengine        tool_s   tok/s  (min-max)         ours/it  fwd/unique  wall_s  rss_mb")
    for tool_s in sorted({row["tool_s"] for rows in results.values() for row in rows}):
        ours = _rates(results.get("lockstep", ()), tool_s)
        for name, rows in results.items():
            rates = _rates(rows, tool_s)
            chosen = [row for row in rows if row["tool_s"] == tool_s]
            ratio = f"{_mean(ours) / _mean(rates):7.2f}" if ours else "      -"
            spread = f"({min(rates):.0f}-{max(rates):.0f})"
            print(
                f"{name:13s} {tool_s:6g} {_mean(rates):7.0f}  {spread:16s}  {ratio}"
                f"  {_mean([_forwarded_per_unique(row) for row in chosen]):10.3f}"
                f"  {_mean([row['wall_s'] for row in chosen]):6.1f}"
                f"  {max(row['peak_rss_mb'] for row in chosen):6.0f}"
            )
    if matmul:
        print(
            f"\nlockstep, free tools: {100 * matmul['share']:.0f}% of the time in matrix products; "
            f"{matmul['times_limit']:.2f} times the {matmul['limit_s']:.2f} s that the layers' "
            "products alone take on this machine"
        )


def headline(results: Mapping[str, Rows], matmul: Mapping[str, float]) -> dict[str, object]:
    """Means over repeats: tokens a second, ratios to each contestant, forwarded over unique."""
    times = sorted({row["tool_s"] for rows in results.values() for row in rows})
    rates = {
        name: {f"{t:g}": round(_mean(_rates(rows, t)), 1) for t in times}
        for name, rows in results.items()
    }
    ours = rates.get("lockstep")
    return {
        "benchmark": "rollout",
        "action_tokens_per_s": rates,
        "ours_over": {
            name: {t: round(ours[t] / rate[t], 2) for t in rate}
            for name, rate in rates.items()
            if ours and name != "lockstep"
        },
        "forwarded_per_unique": {
            name: round(_mean([_forwarded_per_unique(row) for row in rows]), 3)
            for name, rows in results.items()
        },
        "lockstep_matmul": {name: round(value, 3) for name, value in matmul.items()},
        "repeats": {name: len(rows) // max(1, len(times)) for name, rows in results.items()},
    }


def _rates(rows: Rows, tool_s: float) -> list[float]:
    return [row["action_tokens"] / row["wall_s"] for row in rows if row["tool_s"] == tool_s]


def _forwarded_per_unique(row: Mapping[str, float]) -> float:
    return row["forwarded_tokens"] / row["unique_tokens"]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)

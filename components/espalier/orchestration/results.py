"""The output of a finished run: the table of results, and the paths of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def results_text(run_dir: Path, summary: Mapping[str, Any]) -> str:
    """The results of a finished run as text for a terminal."""
    from espalier.evaluation import results_table
    from espalier.reporting import INSTALLS

    results = json.loads((run_dir / "evaluation" / "results.json").read_bytes())
    report = run_dir / "report.html"
    questions, digest = results["suite"]["n"], results["suite"]["digest"]
    seconds = sum(stage["seconds"] or 0 for stage in summary["stages"].values())
    peak_mb = max((stage["peak_rss_mb"] or 0 for stage in summary["stages"].values()), default=0)
    registry = summary["registry"]
    facts = {
        "questions": f"{questions} held out, suite {digest[:12]}",
        "cost": f"{seconds:.0f} s, peak memory {peak_mb:.0f} MiB",
        "report": str(report) if report.is_file() else INSTALLS,
        "summary": str(run_dir / "summary.json"),
        "registered": f"{registry['name']}/{registry['version']} @challenger",
    }
    lines = [f"{name:<10}  {fact}" for name, fact in facts.items()]
    return "\n".join([aligned(results_table(results)), "", *lines])


def aligned(rows: Sequence[Mapping[str, str]]) -> str:
    """A plain table of rows with equal keys: first column left-aligned, the others right."""
    titles = list(rows[0])
    widths = {title: max(len(title), *(len(row[title]) for row in rows)) for title in titles}
    header = dict(zip(titles, titles, strict=True))
    first, *figures = titles
    lines = []
    for row in [header, *rows]:
        cells = [row[first].ljust(widths[first])]
        cells += [row[name].rjust(widths[name]) for name in figures]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)

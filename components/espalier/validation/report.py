"""The validation report: one dictionary, as JSON and as a self-contained page.

Neither contains a time, a path or a generated id, so equal data give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import jinja2

from espalier.validation.judge import ExpectationResult, SuiteVerdict

_SHOWN_DROPS = 100


def describe(
    verdicts: Sequence[SuiteVerdict],
    faults: Sequence[str],
    accepted: Mapping[str, int],
    hub_kinds: Mapping[str, int],
) -> dict[str, object]:
    """The report as plain data.

    Args:
        verdicts: one verdict per suite.
        faults: reasons to stop the run, as sentences.
        accepted: number of accepted rows by file.
        hub_kinds: number of hubs by kind of entity.
    """
    return {
        "verdict": "stopped" if faults else "accepted",
        "faults": list(faults),
        "accepted": dict(accepted),
        "hub_kinds_exempt_from_splits": dict(hub_kinds),
        "suites": {verdict.suite: _suite(verdict) for verdict in verdicts},
    }


def write_report(directory: Path, report: Mapping[str, object]) -> None:
    """Write `validation.json` and `validation.html` into `directory`."""
    text = json.dumps(report, indent=1, ensure_ascii=False)
    (directory / "validation.json").write_text(text + "\n", encoding="utf-8")
    (directory / "validation.html").write_text(rendered(report), encoding="utf-8")


def rendered(report: Mapping[str, object]) -> str:
    """The report as one HTML page without external resources."""
    source = resources.files("espalier.validation").joinpath("report.html.jinja")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source.read_text(encoding="utf-8")).render(report=report)


def _suite(verdict: SuiteVerdict) -> dict[str, object]:
    dropped = verdict.dropped
    return {
        "rows": len(verdict.row_ids),
        "dropped": len(dropped),
        "dropped_rows": [
            {"row": row, "task_id": verdict.row_ids[row], "breaks": list(names)}
            for row, names in list(dropped.items())[:_SHOWN_DROPS]
        ],
        "expectations": [_expectation(verdict, finding) for finding in verdict.findings],
    }


def _expectation(verdict: SuiteVerdict, finding: ExpectationResult) -> dict[str, object]:
    expectation = finding.expectation
    return {
        "name": expectation.name,
        "weight": expectation.weight,
        "rule": expectation.rule.kind,
        "arguments": dict(expectation.rule.arguments),
        "reason": expectation.reason,
        "success": finding.success,
        "failing_rows": len(finding.rows),
        "examples": verdict.examples(finding),
        "problem": finding.problem,
        **({"observed": list(finding.observed)} if finding.observed else {}),
    }

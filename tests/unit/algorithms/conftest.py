"""Reports how many golden cases of each topic were run, counted from the outcomes themselves."""

import re
from collections import Counter

CASE = re.compile(r"test_golden_(\w+)\.py::test_\w+\[(.+)\]$")
OUTCOMES = ("skipped", "passed", "failed", "error")
"""Of a case that several tests run, the last of these counts."""


def pytest_terminal_summary(terminalreporter):
    outcomes = {}
    for outcome in OUTCOMES:
        for report in terminalreporter.stats.get(outcome, []):
            if found := CASE.search(report.nodeid):
                outcomes.setdefault(found[1], {})[found[2]] = outcome
    for topic, by_case in sorted(outcomes.items()):
        counts = Counter(by_case.values())
        parts = [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]]
        terminalreporter.write_line(f"golden {topic}: {len(by_case)} cases, {', '.join(parts)}")

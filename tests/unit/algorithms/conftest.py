"""Reports how many golden cases of each topic were run, counted from the outcomes themselves."""

import re
from collections import Counter

CASE = re.compile(r"test_golden_(\w+)\.py::test_\w+\[")
OUTCOMES = ("passed", "failed", "error", "skipped")


def pytest_terminal_summary(terminalreporter):
    counts = {}
    for outcome in OUTCOMES:
        for report in terminalreporter.stats.get(outcome, []):
            if found := CASE.search(report.nodeid):
                counts.setdefault(found[1], Counter())[outcome] += 1
    for topic, by_outcome in sorted(counts.items()):
        parts = [f"{by_outcome[outcome]} {outcome}" for outcome in OUTCOMES if by_outcome[outcome]]
        terminalreporter.write_line(f"golden {topic}: {', '.join(parts)}")

"""What was drawn, what was refused and why: counts under named headings."""

from __future__ import annotations

from collections import Counter, defaultdict


class Funnel:
    """Counts by heading and reason, and remarks in plain words."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._remarks: list[str] = []

    def count(self, heading: str, reason: str, number: int = 1) -> None:
        """Add `number` to a reason."""
        self._counts[heading][reason] += number

    def remark(self, line: str) -> None:
        """Keep a sentence that a reader of the report should see."""
        self._remarks.append(line)

    def counts(self, heading: str) -> dict[str, int]:
        """Reason -> count under a heading; empty where nothing was counted."""
        return dict(self._counts[heading]) if heading in self._counts else {}

    @property
    def remarks(self) -> list[str]:
        """Every remark, in order."""
        return list(self._remarks)

    def as_dict(self) -> dict[str, object]:
        """Headings, each with its reasons, most frequent first."""
        headings = {
            heading: dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
            for heading, counts in sorted(self._counts.items())
        }
        return {**headings, "remarks": self.remarks}

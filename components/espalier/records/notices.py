"""Notices: what a run's health detectors saw, as rows of an append-only file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from espalier.records.whole_file import write_whole

NOTICES = "notices.jsonl"
"""Name of the file: in the work folder of a stage while it trains, then in its artifact."""

Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What one detector saw at one step, or what was done about it.

    {"step": 12, "time": 1764479091.2, "detector": "entropy", "severity": "warning",
     "since_step": 9, "message": "entropy 0.031 nats, 0.24 in the first steps ...",
     "attempts": ["12/lyon-3/0"], "key": "training.algorithm.entropy_coefficient",
     "figure": "entropy", "action": ""}
    """

    step: int
    """Step after which it was written, counted from 1."""
    time: float
    """Seconds since 1970; of no digest."""
    detector: str
    severity: Severity
    """"critical" is a fault by itself, "warning" a drift from the run's beginning, and "info" what
    was done."""
    since_step: int
    """First step of the drift, as the detector estimates it; at most `step`."""
    message: str
    attempts: tuple[str, ...] = ()
    """Attempts of `step` that show it, as STEP/TASK_ID/N: the N-th attempt at the task, from 0."""
    key: str = ""
    """Key of the profile to change; empty where none would help."""
    figure: str = ""
    """Column of the history that shows it; empty where none does."""
    action: str = ""
    """What `training.health.response = "act"` did; empty for a warning alone."""

    def line(self) -> str:
        """Return it as a line of a log."""
        known = f" since step {self.since_step}" if self.since_step < self.step else ""
        shown = f"; attempts {', '.join(self.attempts[:3])}" if self.attempts else ""
        change = f"; see {self.key}" if self.key else ""
        head = "note" if self.severity == "info" else "warning"
        return f"{head}: step {self.step}: {self.detector}{known}: {self.message}{shown}{change}"


def append_notices(path: Path, notices: Iterable[Notice]) -> None:
    """Add rows, in one write."""
    if text := _text(notices):
        with path.open("a", encoding="utf-8") as stream:
            stream.write(text)


def read_notices(path: Path) -> list[Notice]:
    """Return the rows of a file, [] where there is none.

    A line that is cut, because its writer was killed, is left out, as is one of another shape.
    """
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    return [notice for line in text.split("\n") if (notice := _notice_of(line)) is not None]


def keep_notices_until(path: Path, step: int) -> list[Notice]:
    """Drop the rows of steps after `step`, which a resumed run does again; return the others."""
    found = read_notices(path)
    kept = [notice for notice in found if notice.step <= step]
    if len(kept) < len(found):
        write_whole(path, _text(kept))
    return kept


def _text(notices: Iterable[Notice]) -> str:
    return "".join(f"{json.dumps(asdict(notice), ensure_ascii=False)}\n" for notice in notices)


_NAMES = frozenset(field.name for field in fields(Notice))


def _notice_of(line: str) -> Notice | None:
    try:
        found: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    known = {name: value for name, value in found.items() if name in _NAMES}
    try:
        known["attempts"] = tuple(known.get("attempts", ()))
        return Notice(**known)
    except TypeError:
        return None

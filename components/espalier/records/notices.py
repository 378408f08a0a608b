"""Notices: what a run's health detectors saw, as records of the stream `notices`.

The stream also has the lines of the log, which are no notices here: their records name no detector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from espalier.records.streams import StreamRecord, read_stream

NOTICES = "notices"
"""Name of the stream."""

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

    def record(self) -> StreamRecord:
        """Return it as a record of the stream."""
        content = asdict(self)
        return StreamRecord(content.pop("step"), content)


def read_notices(streams: Path) -> list[Notice]:
    """Return the notices in a folder of streams, oldest first; [] without any."""
    found = map(_notice_of, read_stream(streams, NOTICES))
    return [notice for notice in found if notice is not None]


_NAMES = frozenset(field.name for field in fields(Notice))


def _notice_of(record: Mapping[str, Any]) -> Notice | None:
    known = {name: value for name, value in record.items() if name in _NAMES}
    try:
        known["attempts"] = tuple(known.get("attempts", ()))
        return Notice(**known)
    except TypeError:
        return None

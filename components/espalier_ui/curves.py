"""Figures of steps, notices and the time-line, from the streams of a training."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from espalier.records.notices import NOTICES
from espalier.records.step_figures import OVERVIEW, STEP_FIGURES, StepFigure, step_figure
from espalier.records.streams import read_index, read_line, read_stream, segments
from espalier_ui.sources import is_within, training_streams

_MOST_SPANS = 5000
_MOST_NOTICES = 20_000
_NEWEST_ROWS = 100
"""Steps at the end of a stream in which a list looks for a dev score."""


class Curves:
    """The steps and notices of one run; what is read stays until a file has grown or changed."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._lock = threading.Lock()
        self._seen: dict[str, object] = {}
        self._rows: list[dict[str, Any]] = []
        self._notices: list[dict[str, Any]] = []
        self._counts: Counter[str] = Counter()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per step: `step`, `time`, `figures`, `timings`; finite numbers or None."""
        with self._lock:
            streams = training_streams(self._run_dir)
            found = segments(streams, "steps") if streams else []
            history = self._run_dir / "trained_policy" / "history.parquet"
            seen = _signature([segment.path for segment in found] or [history])
            if seen != self._seen.get("steps"):
                if found:
                    known = self._rows if _continues(self._seen.get("steps"), seen) else []
                    self._rows = [*known, *self._read(streams, known)]
                else:
                    is_own = is_within(self._run_dir, history)
                    self._rows = _history_rows(history) if is_own else []
                self._seen["steps"] = seen
            return self._rows

    def notices(self) -> list[dict[str, Any]]:
        """Return the notices, oldest first: lines of the log, restarts, what detectors found."""
        with self._lock:
            streams = training_streams(self._run_dir)
            found = segments(streams, NOTICES) if streams else []
            seen = _signature([segment.path for segment in found])
            if seen != self._seen.get("notices"):
                read = read_stream(streams, NOTICES) if streams else iter(())
                notices = [_detected(one) if _is_detected(one) else _notice(one) for one in read]
                self._notices = notices[-_MOST_NOTICES:]
                self._counts = Counter(one["level"] for one in in_order_of_worth(self._notices))
                self._seen["notices"] = seen
            return self._notices

    def notice_counts(self) -> dict[str, int]:
        """Return the number of notices by level, after `in_order_of_worth` has joined log lines."""
        self.notices()
        return {"warning": 0, "note": 0} | self._counts

    def newest(self) -> dict[str, Any]:
        """Return the newest value of some figures; {} before the first step.

        A list of runs asks this of all of them: only the end of the stream is read.
        """
        rows = self.rows() if self._rows else self._last_rows() or self.rows()
        if not rows:
            return {}
        newest: dict[str, Any] = {"step": rows[-1]["step"]}
        for name in ("reward", "pass_rate", "dev_em"):
            values = (row["figures"].get(name) for row in reversed(rows))
            newest[name] = next((value for value in values if value is not None), None)
        return newest

    def _last_rows(self) -> list[dict[str, Any]]:
        streams = training_streams(self._run_dir)
        found = segments(streams, "steps") if streams else []
        places = [(one, entry.offset) for one in found[-2:] for entry in read_index(one)]
        records = (read_line(one, offset) for one, offset in places[-_NEWEST_ROWS:])
        return [_row(record) for record in records if record is not None]

    def names(self) -> list[str]:
        """Return the names of all figures that the run has, in the order of the documentation."""
        found = {name for row in self.rows() for name in (*row["figures"], *row["timings"])}
        return sorted(found - {"step"}, key=_place)

    def series(
        self, names: Sequence[str] | None, first: int, last: int | None, points: int
    ) -> dict[str, Any]:
        """Return the columns of `GET .../steps`.

        Args:
            names: figures; None for those of the overview that the run has.
            first: first step.
            last: last step; None for all.
            points: most steps; of more, every n-th is left, and the last one.
        """
        rows = [
            row
            for row in self.rows()
            if row["step"] >= first and (last is None or row["step"] <= last)
        ]
        total = len(rows)
        stride = -(-total // points) if total else 1
        if stride > 1:
            rows = [row for place, row in enumerate(rows) if (total - 1 - place) % stride == 0]
        known = self.names()
        chosen = [name for name in OVERVIEW if name in known] if names is None else names
        return {
            "total": total,
            "stride": stride,
            "steps": [row["step"] for row in rows],
            "time": [row["time"] for row in rows],
            "series": {
                name: [row["figures"].get(name, row["timings"].get(name)) for row in rows]
                for name in chosen
            },
            "names": known,
        }

    def timeline(self, first: int | None, last: int | None) -> dict[str, Any]:
        """Return the spans of `GET .../timeline`, from the measured parts of each step."""
        rows = self.rows()
        if first is None and last is None:
            rows = rows[-20:]
        rows = [
            row
            for row in rows
            if (first is None or row["step"] >= first) and (last is None or row["step"] <= last)
        ]
        steps: list[dict[str, Any]] = []
        spans: list[dict[str, Any]] = []
        is_ahead = self._samples_ahead()
        for row in rows:
            end, seconds = row["time"], row["timings"].get("step_s")
            if end is None or seconds is None:
                continue
            steps.append({"step": row["step"], "start": end - seconds, "end": end})
            spans += _spans(row, end - seconds, end, is_ahead=is_ahead)
        workers = list(dict.fromkeys(span["worker"] for span in spans))
        return {
            "workers": workers,
            "cut": len(spans) > _MOST_SPANS,
            "steps": steps,
            "spans": spans[-_MOST_SPANS:],
        }

    def _samples_ahead(self) -> bool:
        """Whether a worker samples while the learner learns: then the learner only waits."""
        try:
            profile = json.loads((self._run_dir / "profile.json").read_bytes())
            return profile["training"]["asynchronous"]["max_staleness"] > 0
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False

    def _read(
        self, streams: Path | None, known: Sequence[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        after = known[-1]["step"] if known else -1
        for record in read_stream(streams, "steps", after) if streams else ():
            yield _row(record)


def in_order_of_worth(notices: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what detectors found, oldest first, then the rest of the log, newest first.

    Lines of the log that differ in their numbers alone become one, the newest, with their `count`
    and with the step of the first one as `since`.

    Args:
        notices: oldest first.
    """
    detected: list[dict[str, Any]] = []
    logged: dict[tuple[str, ...], dict[str, Any]] = {}
    for number, one in enumerate(notices):
        if one["detected"]:
            detected.append({**one, "count": 1})
            continue
        is_line = one["level"] in ("note", "warning") and one["cost"] is None
        own = () if is_line else (str(number),)
        key = (one["level"], one["source"], _NUMBER.sub("0", one["text"]), *own)
        earlier = logged.pop(key, None)  # the newest one's place is that of the whole
        logged[key] = {**one, "count": 1} if earlier is None else _again(earlier, one)
    return [*detected, *reversed(logged.values())]


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")


def _again(earlier: Mapping[str, Any], newest: Mapping[str, Any]) -> dict[str, Any]:
    since = earlier["step"] if earlier["since"] is None else earlier["since"]
    return {**newest, "count": earlier["count"] + 1, "since": since}


def described(names: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return what figures are.

    Args:
        names: figures of a run; None for the whole table.
    """
    return [_described(name, step_figure(name)) for name in names or STEP_FIGURES]


def _described(name: str, figure: StepFigure | None) -> dict[str, Any]:
    said = {"name": name, "overview": name in OVERVIEW}
    if figure is None:
        return (
            said | dict.fromkeys(("what", "unit", "per", "covers", "scale"), "") | {"range": None}
        )
    return said | {
        "what": figure.what,
        "unit": figure.unit,
        "per": figure.per.unit,
        "covers": figure.per.covers,
        "scale": figure.scale,
        "range": [0, 1] if figure.unit == "share" else None,
    }


_ORDER = {name: place for place, name in enumerate(STEP_FIGURES)}


def _place(name: str) -> tuple[int, str]:
    return _ORDER.get(name, len(_ORDER)), name


def _signature(paths: Sequence[Path]) -> tuple[tuple[int, int], ...]:
    """Return inode and size of each file; a segment keeps both when it gets its final name."""
    found: list[tuple[int, int]] = []
    for path in paths:
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found.append((status.st_ino, status.st_size))
    return tuple(found)


def _continues(before: object, now: Sequence[tuple[int, int]]) -> bool:
    """Whether the files have only grown."""
    if not isinstance(before, tuple) or not before or len(before) > len(now):
        return False
    return all(old[0] == new[0] and old[1] <= new[1] for old, new in zip(before, now, strict=False))


def _history_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a training from before there were streams."""
    try:
        found = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowInvalid):
        return []
    return [
        {"step": int(row["step"]), "time": None, "figures": _numbers(row), "timings": {}}
        for row in found
        if _number(row.get("step")) is not None
    ]


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": record["step"],
        "time": _number(record.get("time")),
        "figures": _numbers(record.get("figures")),
        "timings": _numbers(record.get("timings")),
    }


def _spans(
    row: Mapping[str, Any], start: float, end: float, *, is_ahead: bool
) -> Iterator[dict[str, Any]]:
    timings = row["timings"]
    parts = [
        ("waiting" if is_ahead else "sampling", timings.get("rollout_s")),
        ("update", timings.get("update_s")),
    ]
    last = "evaluation" if row["figures"].get("dev_em") is not None else "other"
    place = start
    for kind, seconds in parts:
        if seconds:
            after = min(end, place + seconds)
            yield _span(row["step"], kind, place, after)
            place = after
    if end - place > 1e-3:
        yield _span(row["step"], last, place, end)


def _span(step: int, kind: str, start: float, end: float) -> dict[str, Any]:
    return {
        "worker": "learner",
        "kind": kind,
        "start": start,
        "end": end,
        "step": step,
        "attempt": None,
    }


def _notice(record: Mapping[str, Any]) -> dict[str, Any]:
    attempts = record.get("attempts")
    return {
        "time": _number(record.get("time")),
        "stage": "train",
        "step": record["step"],
        "detected": _is_detected(record),
        "level": _text(record.get("level")) or "note",
        "source": _text(record.get("source")) or "log",
        "text": _text(record.get("text")) or "",
        "since": record.get("since") if isinstance(record.get("since"), int) else None,
        "attempts": [one for one in attempts if isinstance(one, str)]
        if isinstance(attempts, list)
        else [],
        "key": _text(record.get("key")),
        "figure": _text(record.get("figure")),
        "cost": _number(record.get("cost")),
    }


def _is_detected(record: Mapping[str, Any]) -> bool:
    return "detector" in record


def _detected(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a detector found, by the names of API.md."""
    level = "warning" if row.get("severity") in ("warning", "critical") else "note"
    return _notice(
        {
            "time": row.get("time"),
            "step": row["step"],
            "level": "action" if row.get("action") else level,
            "source": row.get("detector"),
            "detector": row.get("detector"),
            "text": row.get("message"),
            "since": row.get("since_step"),
            "attempts": row.get("attempts"),
            "key": row.get("key") or None,
            "figure": row.get("figure") or None,
        }
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= sys.float_info.max else None


def _numbers(values: object) -> dict[str, float | None]:
    if not isinstance(values, Mapping):
        return {}
    return {str(name): _number(value) for name, value in values.items()}

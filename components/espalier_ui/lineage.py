"""Where an attempt's task came from, and which steps trained on it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from espalier.records import SPLITS
from espalier_ui.run_index import RunIndex
from espalier_ui.sources import DEMONSTRATIONS, SOURCES, TRAIN, is_within

_FOLDERS = ("accepted", "synthetic")
_FURTHER = ("posed", "hindsight")
"""Folders of a policy's artifact with tasks that were added in training."""
_MOST_TASKS = 50
_LONGEST = 20_000
_MOST_DOCUMENTS = 50


class Tasks:
    """The tasks of a run, found by id: only places in the files are kept in memory."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._lock = threading.Lock()
        self._seen: tuple[tuple[str, int, int], ...] = ()
        self._places: dict[str, tuple[Path, int]] = {}
        self._of_document: dict[str, list[str]] = {}

    def get(self, task_id: str) -> dict[str, Any] | None:
        """Return a task: `task`, `split`, `question`, `gold`, `verifier`, `extra` and so on."""
        with self._lock:
            self._follow()
            place = self._places.get(task_id)
        if place is None:
            return None
        try:
            with place[0].open("rb") as stream:
                stream.seek(place[1])
                return _task(json.loads(stream.readline()))
        except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
            return None
        except AttributeError:  # a text or a list where an object should be
            return None

    def of_document(self, document_id: str) -> list[str]:
        """Return the ids of the tasks that were made from a document."""
        with self._lock:
            self._follow()
            return list(self._of_document.get(document_id, ()))

    def _files(self) -> list[Path]:
        folder = next(
            (found for name in _FOLDERS if (found := self._run_dir / name / "tasks").is_dir()), None
        )
        files = [] if folder is None else [folder / f"{split}.jsonl" for split in SPLITS]
        files += [self._run_dir / "trained_policy" / name / "tasks.jsonl" for name in _FURTHER]
        return [path for path in files if path.is_file() and is_within(self._run_dir, path)]

    def _follow(self) -> None:
        files = self._files()
        seen = tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files)
        if seen == self._seen:
            return
        self._seen, self._places, self._of_document = seen, {}, {}
        for path in files:
            for offset, task in _lines(path):
                self._places.setdefault(task["task_id"], (path, offset))
                for document in _evidence(task):
                    self._of_document.setdefault(document, []).append(task["task_id"])


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as stream:
        offset = 0
        for line in stream:
            try:
                task = json.loads(line)
                if isinstance(task, dict) and isinstance(task.get("task_id"), str):
                    yield offset, task
            except (ValueError, RecursionError):
                pass  # a damaged line is not a task
            offset += len(line)


def _evidence(task: dict[str, Any]) -> list[str]:
    metadata = task.get("metadata")
    extra = metadata.get("extra") if isinstance(metadata, dict) else None
    found = extra.get("evidence") if isinstance(extra, dict) else None
    return [str(name) for name in found][:_MOST_DOCUMENTS] if isinstance(found, list) else []


def _task(found: dict[str, Any]) -> dict[str, Any]:
    metadata = found["metadata"]
    extra = metadata.get("extra") or {}
    return {
        "task": found["task_id"],
        "split": metadata.get("split"),
        "question": found["prompt"][-1]["content"][:_LONGEST],
        "gold": found["verifier"]["gold"],
        "verifier": found["verifier"].get("kind"),
        "environment": found.get("environment"),
        "source": metadata.get("source"),
        "pattern": metadata.get("pattern"),
        "difficulty": metadata.get("difficulty"),
        "extra": extra,
        "synthesis": {name: extra[name] for name in ("kind", "query") if name in extra} or None,
        "evidence": _evidence(found),
    }


class Documents:
    """The documents of a run's knowledge."""

    def __init__(self, run_dir: Path) -> None:
        path = run_dir / "knowledge" / "documents.parquet"
        self._path = path if is_within(run_dir, path) else None

    def get(self, ids: list[str]) -> list[dict[str, Any]]:
        """Return `id`, `title`, `text` and `cut` of the documents that the run has."""
        if not ids or self._path is None:
            return []
        try:
            rows = pq.read_table(self._path, filters=[("document_id", "in", ids)]).to_pylist()
        except (OSError, pa.ArrowInvalid, KeyError, ValueError):
            return []
        found = {str(row["document_id"]): _document(row) for row in rows}
        return [found[name] for name in ids if name in found]


def _document(row: dict[str, Any]) -> dict[str, Any]:
    lines = row.get("lines")
    text = "\n".join(map(str, lines)) if isinstance(lines, list) else str(row.get("text") or "")
    return {
        "id": str(row["document_id"]),
        "title": str(row.get("title") or ""),
        "text": text[:_LONGEST],
        "cut": max(0, len(text) - _LONGEST),
    }


def task_history(index: RunIndex, task_id: str) -> dict[str, Any]:
    """Return the steps that sampled a task, and its attempts by source."""
    with index.reading() as connection:
        steps = connection.execute(
            "SELECT step, count(*) AS attempts, sum(is_right) AS passes, max(trained) AS trained "
            "FROM attempts WHERE task = ? AND source = ? GROUP BY step ORDER BY step",
            (task_id, SOURCES.index(TRAIN)),
        ).fetchall()
        counts = connection.execute(
            "SELECT source, count(*) AS attempts FROM attempts WHERE task = ? GROUP BY source",
            (task_id,),
        ).fetchall()
    by_source = {SOURCES[row["source"]]: row["attempts"] for row in counts}
    return {
        "steps": [
            {
                "step": row["step"],
                "attempts": row["attempts"],
                "right": row["passes"],
                "trained": None if row["trained"] is None else bool(row["trained"]),
            }
            for row in steps
        ],
        "sources": [{"source": name, "attempts": n} for name, n in by_source.items()],
        "demonstrations": by_source.get(DEMONSTRATIONS, 0),
    }


def tasks_of_document(tasks: Tasks, document_id: str) -> list[dict[str, Any]]:
    """Return some tasks that were made from a document, with their questions."""
    found = (tasks.get(name) for name in tasks.of_document(document_id)[:_MOST_TASKS])
    return [{"task": one["task"], "question": one["question"]} for one in found if one]

"""Labels of attempts, in a file of the viewer's: JSON lines, the last line about an attempt counts.

    {"run": "/data/runs/demo", "attempt": "train-0-18234", "label": "good", "note": "",
     "time": 1796000000.0, "task": "train-4f1a", "group": "12/train-4f1a", "messages": [...]}

A label keeps the attempt's messages, so that rows can be made when the run is gone. One that was
taken back has `"label": null`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from espalier.records import ArtifactError

GOOD, BAD = "good", "bad"


class LabelFile:
    """The file of labels; several viewers may append to it."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Set the file, which need not exist.

        Args:
            path: the file.
            clock: gives seconds since 1970.
        """
        self.path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._labels: dict[tuple[str, str], dict[str, Any]] = {}

    def of_run(self, run_dir: Path) -> dict[str, str]:
        """Return attempt id -> label."""
        run = str(run_dir)
        return {key[1]: it["label"] for key, it in self._read().items() if key[0] == run}

    def all(self) -> list[dict[str, Any]]:
        """Return all labels, newest first, with their messages."""
        return sorted(self._read().values(), key=lambda it: -it["time"])

    def put(
        self, run_dir: Path, attempt: Mapping[str, Any], label: str | None, note: str = ""
    ) -> dict[str, Any]:
        """Write a label and return it; None takes it back.

        Args:
            run_dir: the run's folder.
            attempt: `id`, `task`, `group` and `messages` of the attempt.
            label: "good", "bad" or any other text.
            note: free text.

        Raises:
            ArtifactError: the file cannot be written.
        """
        said = {
            "run": str(run_dir),
            "attempt": attempt["id"],
            "label": label,
            "note": note,
            "time": self._clock(),
            "task": attempt["task"],
            "group": attempt["group"],
            "messages": attempt["messages"] if label is not None else [],
        }
        line = json.dumps(said, ensure_ascii=False).encode(errors="replace") + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock, self.path.open("ab") as stream:
                if stream.tell() and not self._ends_whole():
                    stream.write(b"\n")  # a killed writer's line is torn: it must not join this one
                stream.write(line)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise ArtifactError(
                f"{self.path}: labels cannot be kept there ({error.strerror or error}); give "
                "another file with --labels"
            ) from error
        return said

    def _ends_whole(self) -> bool:
        with self.path.open("rb") as stream:
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) == b"\n"

    def _read(self) -> dict[tuple[str, str], dict[str, Any]]:
        with self._lock:
            try:
                status = self.path.stat()
            except OSError:
                self._seen, self._labels = None, {}
                return self._labels
            seen = (status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                self._labels = {}
                for found in _lines(self.path):
                    key = (found["run"], found["attempt"])
                    self._labels.pop(key, None)
                    if found["label"] is not None:
                        self._labels[key] = found
                self._seen = seen
            return self._labels


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as stream:
        for line in stream:
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict) and _is_label(found):
                yield found


def _is_label(found: Mapping[str, Any]) -> bool:
    texts = (found.get(name) for name in ("run", "attempt", "task", "group", "note"))
    label, when = found.get("label"), found.get("time")
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(label, str | None)
        and isinstance(when, int | float)
        and isinstance(found.get("messages"), list)
    )


def sft_rows(labels: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield `{"messages": ...}` for each attempt labelled good, as `warm_start` reads it."""
    for label in labels:
        if label["label"] == GOOD:
            yield {"messages": _written(label["messages"])}


def preference_rows(labels: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield `prompt`, `chosen` and `rejected` for each good and bad attempt at the same task."""
    by_task: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for label in labels:
        of_task = by_task.setdefault((label["run"], label["task"]), {GOOD: [], BAD: []})
        if label["label"] in of_task:
            of_task[label["label"]].append(label)
    for of_task in by_task.values():
        for good, bad in product(of_task[GOOD], of_task[BAD]):
            prompt, chosen = _split(good["messages"])
            other_prompt, rejected = _split(bad["messages"])
            if prompt == other_prompt and chosen and rejected:
                yield {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def _split(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[Any]]:
    written = _written(messages)
    first = next((n for n, one in enumerate(written) if one["role"] == "assistant"), len(written))
    return written[:first], written[first:]


def _written(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the messages in OpenAI's format; what is none, in a damaged record, is left out."""
    return [_message(one) for one in messages if isinstance(one, Mapping)]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in OpenAI's chat format."""
    said: dict[str, Any] = {"role": message.get("role"), "content": message.get("content") or ""}
    if message.get("thought") is not None:
        said["reasoning_content"] = message["thought"]
    if message.get("role") == "tool":
        said["tool_call_id"] = message.get("call_id") or ""
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        said["tool_calls"] = [
            {
                "type": "function",
                "id": call.get("call_id") or "",
                "function": {
                    "name": call.get("name"),
                    "arguments": json.dumps(call.get("arguments"), ensure_ascii=False),
                },
            }
            for call in calls
            if isinstance(call, Mapping)
        ]
    return said

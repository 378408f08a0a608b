"""The log of steps that run in processes of their own: all of it in a file, the news on stderr."""

from __future__ import annotations

import io
import sys
from collections.abc import Collection
from pathlib import Path

_ERROR = "error: "


class StepLog(io.TextIOBase):
    """A stream for what kfp.local prints; it also remembers what the last failing step said."""

    def __init__(self, path: Path, stages: Collection[str]) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._stages = frozenset(stages)
        self._partial_line = ""
        self._error_lines: list[str] = []
        self._is_in_error = False

    @property
    def error(self) -> str:
        """The message of the step that failed, or nothing."""
        return "\n".join(self._error_lines)

    def write(self, text: str) -> int:
        """Keep the text, and pass on the whole lines in it that a stage said."""
        self._file.write(text)
        *lines, self._partial_line = (self._partial_line + text).split("\n")
        for line in lines:
            self._read(line.strip())
        return len(text)

    def flush(self) -> None:
        """Flush the file."""
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def _read(self, line: str) -> None:
        if line.startswith(_ERROR):
            self._is_in_error, self._error_lines = True, [line.removeprefix(_ERROR)]
        elif not line:
            self._is_in_error = False
        elif self._is_in_error:
            self._error_lines.append(line)
        elif line.partition(" ")[0] in self._stages:
            sys.stderr.write(line + "\n")

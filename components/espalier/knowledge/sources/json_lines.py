"""Reading the user's text and JSON lines, with errors that name the file and the line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from espalier.records import KnowledgeError


class JsonLine(NamedTuple):
    """One object of a .jsonl file."""

    place: str
    """File and line, for messages."""
    number: int
    row: dict[str, Any]

    def text(self, *keys: str) -> str:
        """The first of `keys` that the row has, as a non-empty string.

        Raises:
            KnowledgeError: the row has none of them, or it is no text.
        """
        for key in keys:
            if key in self.row:
                value = self.row[key]
                if isinstance(value, str) and value.strip():
                    return " ".join(value.split())
                raise KnowledgeError(
                    f"{self.place}: {key!r} is {value!r}; write a string that is not empty"
                )
        wanted = " or ".join(repr(key) for key in keys)
        raise KnowledgeError(f"{self.place}: no {wanted}; the row has {sorted(self.row)}")


def read_text(path: Path) -> str:
    """The file as UTF-8 text.

    Raises:
        KnowledgeError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise KnowledgeError(
            f"{path}: not UTF-8 at byte {error.start} ({error.reason}). "
            f"Convert it, for example: iconv -f latin1 -t utf-8 {path.name}"
        ) from error
    except OSError as error:
        raise KnowledgeError(f"{path}: cannot be read ({error.strerror})") from error


def read_json_lines(path: Path) -> Iterator[JsonLine]:
    """The objects of a .jsonl file; blank lines are skipped.

    Raises:
        KnowledgeError: a line that is not a JSON object.
    """
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise KnowledgeError(
                f"{place}: not JSON ({error.msg} at column {error.colno}). "
                "Write one object per line, or remove the line."
            ) from error
        if not isinstance(row, dict):
            raise KnowledgeError(f"{place}: {type(row).__name__}, not an object in braces")
        yield JsonLine(place, number, row)

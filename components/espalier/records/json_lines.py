"""Records as JSON lines: one place for how they are written, read, and refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from espalier.records.errors import DataError

RecordT = TypeVar("RecordT", bound=BaseModel)


def write_records(path: Path, records: Iterable[BaseModel]) -> int:
    """Write one record a line and return how many there were."""
    count = 0
    with path.open("w", encoding="utf-8") as stream:
        for record in records:
            stream.write(record.model_dump_json() + "\n")
            count += 1
    return count


def read_records(path: Path, kind: type[RecordT]) -> list[RecordT]:
    """Read what `write_records` wrote.

    Raises:
        DataError: naming the file and the line that is no record of this kind.
    """
    records: list[RecordT] = []
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                records.append(kind.model_validate_json(line))
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"]) or "line"
                raise DataError(f"{path}, line {number}: {where}: {first['msg']}") from error
    return records


def read_json_values(path: Path) -> Iterator[tuple[int, object]]:
    """The JSON value of each line that is not blank, with its line number, from 1.

    Raises:
        DataError: the file cannot be read, or a line is not JSON.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, _json_value(path, number, line)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _json_value(path: Path, number: int, line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # nesting of thousands of levels
        raise DataError(f"{path}, line {number}: not JSON ({error})") from error

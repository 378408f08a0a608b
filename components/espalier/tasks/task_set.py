"""Reading and writing task files: one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from espalier.artifacts import DataError
from espalier.tasks.task import Task


def write_tasks(path: Path, tasks: Iterable[Task]) -> int:
    """Write `tasks` as JSON lines and return how many there were."""
    count = 0
    with path.open("w", encoding="utf-8") as stream:
        for task in tasks:
            stream.write(task.model_dump_json() + "\n")
            count += 1
    return count


def read_tasks(path: Path) -> list[Task]:
    """Read a task file.

    Raises:
        DataError: naming the file and the line that is not a task, or an empty file.
    """
    tasks: list[Task] = []
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                tasks.append(Task.model_validate_json(line))
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"]) or "line"
                raise DataError(f"{path}, line {number}: {where}: {first['msg']}") from error
    if not tasks:
        raise DataError(f"{path}: holds no task")
    return tasks

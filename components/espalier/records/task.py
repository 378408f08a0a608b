"""A task: its prompt, its environment, its verifier; and files of JSON lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from espalier.records.errors import DataError
from espalier.records.message import JsonObject, Message

RecordT = TypeVar("RecordT", bound=BaseModel)


def write_records(path: Path, records: Iterable[BaseModel]) -> int:
    """Write one record per line and return how many there were."""
    count = 0
    with path.open("w", encoding="utf-8") as stream:
        for record in records:
            stream.write(record.model_dump_json() + "\n")
            count += 1
    return count


def read_records(path: Path, kind: type[RecordT]) -> list[RecordT]:
    """Read what `write_records` wrote.

    Raises:
        DataError: a line is no record of this kind; the message names file and line.
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
    """Yield the JSON value of each line that is not blank, with its line number, from 1.

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


Split = Literal["train", "dev", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "dev", "heldout")


class Verifier(BaseModel, frozen=True, extra="forbid"):
    """How the task's family checks an answer."""

    kind: str = "exact_match"
    """One of the kinds that the family knows."""
    gold: tuple[str, ...] = Field(min_length=1)
    """Accepted answers; the first is the canonical one."""


class TaskMetadata(BaseModel, frozen=True, extra="forbid"):
    """Fields that stages read, and `extra`, which only the family reads."""

    split: Split
    source: str
    """The generator or file of the task."""
    pattern: str = ""
    """Shared by tasks that differ only in names and numbers; empty if there are none."""
    difficulty: float | None = None
    """Grows with the steps of a solution, where the family can tell."""
    extra: JsonObject = Field(default_factory=dict)
    """The family's own data, which stages store and never read."""


class Task(BaseModel, frozen=True, extra="forbid"):
    """One task of a family.

    task_id      train-4f1a0c2d9e7b
    prompt       user: Name the time zone used in Duaca.
    environment  search_qa                    arguments  {"index": "train"}
    verifier     exact_match, gold ("America/Caracas",)
    metadata     split train, source webshaper, pattern "time_zone(C)", difficulty 1,
                 extra {"kind": "chain", "hops": 1, "query": ..., ...}
    """

    task_id: str = Field(min_length=1)
    prompt: tuple[Message, ...] = Field(min_length=1)
    environment: str
    """Name of the task's family."""
    arguments: JsonObject = Field(default_factory=dict)
    """Arguments of its environment."""
    verifier: Verifier
    metadata: TaskMetadata

    @property
    def question(self) -> str:
        """The last message of the prompt."""
        return self.prompt[-1].content

    @property
    def extra(self) -> JsonObject:
        """The family's own metadata."""
        return self.metadata.extra


def task_id_of(split: Split, key: str) -> str:
    """Return the id of a task; equal keys of a split are the same task."""
    digest = hashlib.sha256(f"{split}\t{key}".encode()).hexdigest()
    return f"{split}-{digest[:12]}"


def write_tasks(path: Path, tasks: Iterable[Task]) -> int:
    """Write `tasks` as JSON lines and return how many there were."""
    return write_records(path, tasks)


def read_tasks(path: Path) -> list[Task]:
    """Read a task file.

    Raises:
        DataError: a line is no task (the message names file and line), or the file is empty.
    """
    tasks = read_records(path, Task)
    if not tasks:
        raise DataError(f"{path}: holds no task")
    return tasks

"""Files of public benchmarks: reading rows, making tasks of them, and checking gold answers.

A family's reader parses rows into its own model, and makes a task of each:

    class Row(BenchmarkRow):
        question: str
        answer: str

    def read_benchmark(self, path):
        rows = read_rows(path, Row)
        return benchmark_tasks(path, [self._task(where, row) for where, row in rows])

Files may hold JSON lines or a JSON array of objects, either of them compressed with gzip, or be
parquet files, which are recognised by their suffix.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, cast

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
from pydantic import BaseModel, ConfigDict, ValidationError

from espalier.environments.contract import Environments
from espalier.environments.teaching import GaveUp, play_script
from espalier.records import DataError, Task

if TYPE_CHECKING:
    from espalier.environments.family import Family

_MAX_BYTES = 1 << 30
"""Largest file, decompressed; the largest public set used here is HotpotQA's, 600 MB."""


class BenchmarkRow(BaseModel):
    """Base of the models of rows; keys that the model does not name are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


RowT = TypeVar("RowT", bound=BaseModel)


def read_rows(path: Path, row: type[RowT]) -> list[tuple[str, RowT]]:
    """Return the rows of a file, each with its place ("FILE, row 3").

    Raises:
        DataError: the file is empty or a row is malformed; the message names both.
    """
    found = [(where, parsed_row(where, value, row)) for where, value in read_objects(path)]
    if not found:
        raise DataError(f"{path}: holds no row")
    return found


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON objects of a file, each with its place.

    Raises:
        DataError: the file cannot be read, is not JSON, or holds other values than objects.
    """
    if path.suffix == ".parquet":
        yield from _table(path)
        return
    text = _text(path)
    values = _array(path, text) if text.lstrip()[:1] == "[" else _lines(path, text)
    for where, value in values:
        if not isinstance(value, dict):
            raise DataError(f"{where}: not a JSON object")
        yield where, value


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the single JSON object in a file.

    Raises:
        DataError: the file cannot be read, is not JSON, or is not an object.
    """
    value = _json(str(path), _text(path))
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a JSON object")
    return cast("dict[str, Any]", value)


def parsed_row(where: str, value: object, row: type[RowT]) -> RowT:
    """Validate a value from a file as a row.

    Args:
        where: the value's place, for the error message.
        value: a parsed JSON value.
        row: the model of the row.

    Raises:
        DataError: the value does not fit the model; the message names the key.
    """
    try:
        return row.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{where}: {f'{key}: ' if key else ''}{first['msg']}") from error


def _table(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        # more threads are not worth it for small files
        found = cast("Any", pq).read_table(path, use_threads=False).to_pylist()
    except cast("tuple[type[Exception], ...]", (OSError, cast("Any", pa).ArrowException)) as error:
        raise DataError(f"{path}: cannot be read as a parquet file ({error})") from error
    for number, row in enumerate(cast("list[dict[str, Any]]", found), start=1):
        yield f"{path}, row {number}", row


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise DataError(f"{path}: more than {_MAX_BYTES >> 20} MiB; give a part of it")
        return content.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a benchmark ({error})") from error


def _array(path: Path, text: str) -> Iterator[tuple[str, object]]:
    for number, value in enumerate(_json(str(path), text), start=1):
        yield f"{path}, row {number}", value


def _lines(path: Path, text: str) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(
        text.split("\n"), start=1
    ):  # not splitlines: it would split at U+2028 inside a text
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _json(where, line)


def _json(where: str, text: str) -> Any:  # noqa: ANN401 (whatever a file holds)
    try:
        value = json.loads(text, parse_constant=_no_number)
        if _SURROGATE.search(text):  # a lone surrogate cannot be written as UTF-8 into a task file
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        half = f"a text with half of a surrogate pair, {error.reason}"
        raise DataError(f"{where}: not JSON ({half})") from error
    except (ValueError, RecursionError) as error:  # RecursionError: thousands of nested levels
        raise DataError(f"{where}: not JSON ({error})") from error


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def benchmark_tasks(path: Path, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks of a file, after checking that there are some and ids are unique.

    Raises:
        DataError: there is no task, or two have the same id.
    """
    if not tasks:
        raise DataError(f"{path}: holds no task")
    seen: dict[str, int] = {}
    for number, task in enumerate(tasks, start=1):
        if first := seen.get(task.task_id):
            raise DataError(f"{path}: task {number} is task {first} again; delete one of them")
        seen[task.task_id] = number
    return list(tasks)


class GoldFault(NamedTuple):
    """A gold answer without full score, or another task's gold answer with full score."""

    task_id: str
    fault: str


@dataclass(frozen=True, slots=True)
class GoldCheck:
    """How a family scores gold answers."""

    accepted: int
    """Number of tasks whose own gold answer gets the full score."""
    refused: int
    """Number of tasks for which another task's gold answer gets less."""
    untried: int
    """Number of tasks on which no wrong answer was tried: one answer solves all of them."""
    faults: tuple[GoldFault, ...]
    """Faults in the order of the tasks."""


def check_golds(
    family: Family[Any], tasks: Sequence[Task], environments: Environments
) -> GoldCheck:
    """Play each task's gold script, and the gold script of the next task with another answer.

    The first must be right with a headline score of 1, and the second must score less.

    Args:
        family: the family of the tasks.
        tasks: any number of tasks.
        environments: the tasks' environments, from `Family.benchmark_environments`.
    """
    accepted = refused = untried = 0
    keys = [family.answer_key(task) for task in tasks]
    faults: list[GoldFault] = []
    for place, task in enumerate(tasks):
        lacking = _lacking(family, task, task, environments)
        if lacking:
            faults.append(GoldFault(task.task_id, f"its own gold answer: {lacking}"))
        else:
            accepted += 1
        # the next task that another answer solves, wrapping around at the end
        ahead = chain(range(place + 1, len(tasks)), range(place))
        other = next((tasks[one] for one in ahead if keys[one] != keys[place]), None)
        if other is None:
            untried += 1
        elif _lacking(family, task, other, environments):
            refused += 1
        else:
            faults.append(GoldFault(task.task_id, f"the gold answer of {other.task_id}: right"))
    return GoldCheck(accepted, refused, untried, tuple(faults))


def _lacking(family: Family[Any], task: Task, scripted: Task, environments: Environments) -> str:
    """Return why the gold script of `scripted` does not solve `task` fully; empty if it does.

    Raises:
        EnvironmentLostError: the environment was lost for an outside cause.
    """
    try:
        played = asyncio.run(play_script(environments, task, family.gold_script(scripted)))
    except GaveUp as reason:
        return str(reason)
    score = family.official_scores(task, played)[family.headline]
    if played.is_right and score >= 1:
        return ""
    return f"{family.headline} {score:g} ({played.finish_reason.value})"

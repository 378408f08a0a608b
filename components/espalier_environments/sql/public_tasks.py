"""Questions in InterCode's format and in Spider's, with their databases.

    InterCode   [{"db": "dev", "query": QUESTION, "gold": SQL}], beside a MySQL dump, NAME.sql
    Spider      [{"db_id": "pets", "question": QUESTION, "query": SQL}], beside
                database/pets/pets.sqlite

The gold queries run once, in a sandbox, when the file is read. A gold query that fails there is
reported with its reason and makes no task.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from espalier.environments.benchmarks import BenchmarkRow, read_objects, read_rows
from espalier.environments.family import make_task
from espalier.records import DataError, Split, Task
from espalier.sandbox.choice import PoolThread
from espalier_environments.sql.databases import Database, read_database
from espalier_environments.sql.mysql_dump import read_dump
from espalier_environments.sql.runs import QueryResult, QueryRuns
from espalier_environments.sql.wikisql import Unreadable, quoted_gold


class InterCodeRow(BenchmarkRow):
    """A row of InterCode's files."""

    db: str = Field(min_length=1)
    query: str = Field(min_length=1)
    gold: str = Field(min_length=1)


class SpiderRow(BenchmarkRow):
    """A row of Spider's files."""

    db_id: str = Field(min_length=1)
    question: str = Field(min_length=1)
    query: str = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class PublicQuestion:
    """A question of a file, before its gold query has run."""

    where: str
    database: str
    question: str
    gold: str


@dataclass(frozen=True, slots=True)
class BrokenGold:
    """A row whose gold query does not run, and why."""

    where: str
    gold: str
    reason: str


@dataclass(frozen=True, slots=True)
class PublicFile:
    """The questions in a file, and the databases that they are about."""

    questions: tuple[PublicQuestion, ...]
    databases: Mapping[str, Database]
    broken: tuple[BrokenGold, ...] = ()
    """Rows whose gold query could not even be parsed."""


Golds = Literal["as_written", "quoted"]


def read_public_file(path: Path, golds: Golds) -> PublicFile:
    """Return the questions of a file in either format.

    Raises:
        DataError: a row is malformed, or a database is missing or cannot be read.
    """
    is_spider = any("db_id" in row for _, row in islice(read_objects(path), 1))
    return _read_spider(path) if is_spider else _read_intercode(path, golds)


_PLAIN_NAME = re.compile(r"\w[\w.\- ]*")


def _read_spider(path: Path) -> PublicFile:
    questions: list[PublicQuestion] = []
    databases: dict[str, Database] = {}
    for where, row in read_rows(path, SpiderRow):
        if not _PLAIN_NAME.fullmatch(row.db_id):
            raise DataError(f"{where}: {row.db_id[:60]!r} is not the name of a database")
        if row.db_id not in databases:
            file = path.parent / "database" / row.db_id / f"{row.db_id}.sqlite"
            databases[row.db_id] = read_database(file)
        questions.append(PublicQuestion(where, row.db_id, row.question, row.query))
    return PublicFile(tuple(questions), databases)


def _read_intercode(path: Path, golds: Golds) -> PublicFile:
    dumped = read_dump(_dump_of(path))
    questions: list[PublicQuestion] = []
    broken: list[BrokenGold] = []
    for where, row in read_rows(path, InterCodeRow):
        if row.db not in dumped:
            raise DataError(f"{where}: the dump has no database {row.db[:60]!r}")
        try:
            tables = dumped[row.db].tables
            gold = quoted_gold(row.gold, tables) if golds == "quoted" else row.gold
        except Unreadable as reason:
            broken.append(BrokenGold(where, row.gold, str(reason)))
        else:
            questions.append(PublicQuestion(where, row.db, row.query.strip(), gold))
    databases = {name: found.database for name, found in dumped.items()}
    return PublicFile(tuple(questions), databases, tuple(broken))


def _dump_of(path: Path) -> Path:
    """Return the dump next to a file: the one with its name, or the only one there."""
    own = path.with_suffix(".sql")
    others = sorted(path.parent.glob("*.sql"))
    if own.is_file():
        return own
    if len(others) != 1:
        raise DataError(f"{path}: needs its databases beside it, as the MySQL dump {own.name}")
    return others[0]


def public_tasks(
    file: PublicFile, runs: QueryRuns, sandboxes: PoolThread, *, split: Split, family: str
) -> tuple[list[Task], list[BrokenGold]]:
    """Return the tasks of a file with their gold rows, and the rows that make no task.

    Args:
        file: content of the file.
        runs: runs the gold queries.
        sandboxes: the pool in which they run.
        split: split of the tasks.
        family: name of the family.
    """

    async def answers() -> Sequence[QueryResult]:
        asked = (runs.ask_here(file.databases[q.database], "query", q.gold) for q in file.questions)
        return await asyncio.gather(*asked)

    tasks: list[Task] = []
    broken = list(file.broken)
    for question, found in zip(file.questions, sandboxes.post(answers()).result(), strict=True):
        if found.error:
            broken.append(BrokenGold(question.where, question.gold, found.error))
        else:
            tasks.append(_task(question, found, split, family))
    return tasks, broken


_ORDERED = re.compile(r"\border\s+by\b", re.IGNORECASE)


def _task(question: PublicQuestion, found: QueryResult, split: Split, family: str) -> Task:
    return make_task(
        family,
        question.question,
        gold=(question.gold,),
        split=split,
        source=question.where,
        key=f"{question.where} {question.question}",
        kind="rows",
        arguments=row_arguments(question.database, found.rows, _ORDERED.search(question.gold)),
        metadata={"extra": {"kind": query_kind(question.gold)}},
    )


def row_arguments(
    database: str, rows: Sequence[Sequence[object]], ordered: object
) -> dict[str, JsonValue]:
    """Return the arguments of a task: its database, the gold rows, and whether order counts."""
    shown: JsonValue = [list(row) for row in rows]  # pyright: ignore[reportAssignmentType] (plain values)
    return {"database": database, "rows": shown, "ordered": bool(ordered)}


_PARTS = {
    "join": r"\bjoin\b",
    "nested": r"\(\s*select\b",
    "group": r"\bgroup\s+by\b",
    "order": r"\border\s+by\b",
    "aggregate": r"\b(count|sum|avg|min|max)\b",
}


def query_kind(query: str) -> str:
    """Return the first of a few constructs that a query has; "select" if it has none."""
    found = (name for name, part in _PARTS.items() if re.search(part, query, re.IGNORECASE))
    return next(found, "select")

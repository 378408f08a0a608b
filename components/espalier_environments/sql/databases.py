"""Databases as SQLite files: made from tables, or read from a file."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from espalier.records import DataError

Value = str | int | float | None

_PAGE_BYTES = 1024
"""Small pages: a database of two tables then takes only a few KiB."""
MAX_FILE_BYTES = 24 * 2**20
"""Largest database file, as a sandbox has a disk of 32 MiB."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    kind: str = "TEXT"
    """SQLite type: TEXT, INTEGER or REAL."""
    refers_to: tuple[str, str] | None = None
    """Table and column of a foreign key."""
    ignores_case: bool = False
    """Whether texts are compared ignoring case, as in MySQL's `_ci` collations."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its rows."""

    name: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Value]]


@dataclass(frozen=True)
class Database:
    """A SQLite file."""

    name: str
    content: bytes

    @cached_property
    def file(self) -> str:
        """File name in a sandbox, derived from the content."""
        return f"{hashlib.sha256(self.content).hexdigest()[:16]}.sqlite"


def quoted(name: str) -> str:
    """Return a name quoted as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def make_database(name: str, tables: Sequence[Table]) -> Database:
    """Return a database with these tables.

    Raises:
        DataError: SQLite refuses them, for duplicate columns or rows of the wrong length.
    """
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            for table in tables:
                connection.execute(_creation(table))
                places = ", ".join("?" for _ in table.columns)
                connection.executemany(
                    f"INSERT INTO {quoted(table.name)} VALUES ({places})", table.rows
                )
            connection.commit()
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise DataError(f"database {name[:60]}: {str(error)[:300]}") from error
        return Database(name, connection.serialize())


def _creation(table: Table) -> str:
    columns = [
        f"{quoted(column.name)} {column.kind}{' COLLATE NOCASE' * column.ignores_case}"
        for column in table.columns
    ]
    keys = [
        f"FOREIGN KEY ({quoted(column.name)}) REFERENCES "
        f"{quoted(column.refers_to[0])} ({quoted(column.refers_to[1])})"
        for column in table.columns
        if column.refers_to
    ]
    return f"CREATE TABLE {quoted(table.name)} ({', '.join(columns + keys)})"


_MAGIC = b"SQLite format 3\x00"


def read_database(path: Path) -> Database:
    """Read a SQLite file of the user's, which is opened in sandboxes only.

    Raises:
        DataError: the file is missing, too large for a sandbox, or not SQLite.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"{path}: more than {MAX_FILE_BYTES >> 20} MiB, and too large to query")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if not content.startswith(_MAGIC):
        raise DataError(f"{path}: is not an SQLite database")
    return Database(path.stem, content)

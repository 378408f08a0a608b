r"""Reads MySQL dumps: the CREATE TABLE and INSERT statements of each database.

    CREATE DATABASE IF NOT EXISTS `dev`; USE `dev`;
    CREATE TABLE `t` (`id` int NOT NULL AUTO_INCREMENT, `name` text, PRIMARY KEY (`id`));
    INSERT INTO `t` VALUES (1, 'it\'s'), (2, NULL);

Other statements (users, grants, locks) are skipped. Nothing in the file is executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import TokenType

from espalier.records import DataError
from espalier_environments.sql.databases import Column, Database, Table, Value, make_database

_MAX_BYTES = 256 * 2**20
_MAX_FAULT = 300
"""Characters of an error: names of a file may be as long as the file."""
_MAX_INTEGER_DIGITS = 18
"""What SQLite stores as an integer; a longer one is a REAL."""
_READ = (["USE"], ["CREATE", "TABLE"], ["INSERT", "INTO"])
_INTEGERS = exp.DataType.INTEGER_TYPES | {
    exp.DataType.Type.BIT,
    exp.DataType.Type.BOOLEAN,
    exp.DataType.Type.YEAR,
}
_REALS = exp.DataType.REAL_TYPES


class DumpTable(NamedTuple):
    """Name and columns of a table in a dump."""

    name: str
    columns: tuple[Column, ...]


class DumpedDatabase(NamedTuple):
    """A database in a dump."""

    database: Database
    tables: dict[str, DumpTable]


@dataclass
class _Filled:
    """A table and the rows that are read so far."""

    table: DumpTable
    rows: list[list[Value]] = field(default_factory=list[list[Value]])


def read_dump(path: Path) -> dict[str, DumpedDatabase]:
    """Return the databases of a dump by name.

    Raises:
        DataError: a line cannot be read, which the message names, or there is no table.
    """
    found: dict[str, dict[str, _Filled]] = {}
    current = ""
    for line, statement in _statements(path, _text(path)):
        try:
            if isinstance(statement, exp.Use):
                current = statement.this.name
            elif isinstance(statement, exp.Insert):
                _insert(statement, found.get(current, {}))
            else:
                table = _table(statement)
                tables = found.setdefault(current, {})
                if table.name.lower() in tables:
                    raise _Unreadable(f"the table {table.name} is created twice")
                tables[table.name.lower()] = _Filled(table)
        except _Unreadable as error:
            raise DataError(f"{path}, line {line}: {str(error)[:_MAX_FAULT]}") from error
    if not found:
        raise DataError(f"{path}: creates no table")
    return {
        name: DumpedDatabase(
            make_database(name, [Table(*one.table, one.rows) for one in tables.values()]),
            {one.table.name: one.table for one in tables.values()},
        )
        for name, tables in found.items()
    }


class _Unreadable(Exception):
    """A statement that makes no table or rows; the message says why."""


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise DataError(f"{path}: more than {_MAX_BYTES >> 20} MiB; give a part of it")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a dump ({error})") from error


def _statements(path: Path, text: str) -> Iterator[tuple[int, exp.Expr]]:
    """The statements that are read, each with the line on which it begins."""
    mysql = MySQL()
    try:
        tokens = mysql.tokenize(text)
    except TokenError as error:
        raise DataError(f"{path}: {str(error.__cause__ or error)[:_MAX_FAULT]}") from error
    for is_end, group in groupby(tokens, lambda token: token.token_type is TokenType.SEMICOLON):
        statement = list(group)
        words = [token.text.upper() for token in statement[:2]]
        if is_end or not any(words[: len(read)] == read for read in _READ):
            continue
        try:
            (parsed,) = mysql.parser().parse(statement, text)
        except ParseError as error:
            line, said = error.errors[0]["line"], error.errors[0]["description"]
            raise DataError(f"{path}, line {line}: {said[:_MAX_FAULT]}") from error
        except RecursionError as error:
            raise DataError(f"{path}, line {statement[0].line}: nested too deeply") from error
        if parsed is not None:
            yield statement[0].line, parsed


def _table(create: exp.Expr) -> DumpTable:
    schema = create.this
    if not isinstance(create, exp.Create) or not isinstance(schema, exp.Schema):
        raise _Unreadable("CREATE TABLE without columns, or with what MySQL does not know")
    keys: dict[str, tuple[str, str]] = {}
    for key in schema.find_all(exp.ForeignKey):
        if (reference := key.args.get("reference")) is None:
            raise _Unreadable("a foreign key without REFERENCES")
        target = reference.this
        if len(key.expressions) == len(target.expressions) == 1:
            keys[key.expressions[0].name.lower()] = (target.this.name, target.expressions[0].name)
    collation = create.find(exp.CollateProperty)
    ignores_case = collation is not None and collation.name.lower().endswith("_ci")
    columns: list[Column] = []
    for one in schema.expressions:
        if isinstance(one, exp.Identifier):
            raise _Unreadable(f"the column {one.name} has no type")
        if isinstance(one, exp.ColumnDef):
            kind = _kind(one)
            refers_to = keys.get(one.name.lower())
            columns.append(Column(one.name, kind, refers_to, ignores_case and kind == "TEXT"))
    return DumpTable(schema.this.name, tuple(columns))


def _kind(column: exp.ColumnDef) -> str:
    """MySQL's type as one of SQLite's."""
    if column.kind is None:
        raise _Unreadable(f"the column {column.name} has no type")
    if column.kind.this in _INTEGERS:
        return "INTEGER"
    return "REAL" if column.kind.this in _REALS else "TEXT"


def _insert(insert: exp.Insert, tables: dict[str, _Filled]) -> None:
    named = insert.this if isinstance(insert.this, exp.Schema) else None
    name = (named or insert).this.name
    filled = tables.get(name.lower())
    if filled is None:
        raise _Unreadable(f"there is no table {name} to insert into")
    columns = [column.name.lower() for column in filled.table.columns]
    given_names = columns if named is None else [one.name.lower() for one in named.expressions]
    if unknown := set(given_names) - set(columns):
        raise _Unreadable(f"the table {name} has no column {min(unknown)!r}")
    places = [columns.index(one) for one in given_names]
    if not isinstance(insert.expression, exp.Values):
        raise _Unreadable("INSERT without VALUES")
    for given in insert.expression.expressions:
        values = [_value(one) for one in given.expressions]
        if len(values) != len(places):
            raise _Unreadable(f"{len(values)} values for {len(places)} columns of {name}")
        row: list[Value] = [None] * len(columns)
        for place, value in zip(places, values, strict=True):
            row[place] = value
        filled.rows.append(row)


def _value(given: exp.Expr) -> Value:
    match given:
        case exp.Null():
            return None
        case exp.Boolean():
            return int(given.this)
        case exp.Literal() if given.is_string:
            return given.name
        case exp.Literal():
            return _number(given.name)
        case exp.Neg(this=exp.Literal() as number) if not number.is_string:
            return -_number(number.name)
        case _:
            raise _Unreadable(f"{given.sql()[:40]!r} is no value")


def _number(literal: str) -> int | float:
    is_integer = literal.isdecimal() and len(literal) <= _MAX_INTEGER_DIGITS
    return int(literal) if is_integer else float(literal)

r"""Reads MySQL dumps: the CREATE TABLE and INSERT statements of each database.

    CREATE DATABASE IF NOT EXISTS `dev`; USE `dev`;
    CREATE TABLE `t` (`id` int NOT NULL AUTO_INCREMENT, `name` text, PRIMARY KEY (`id`));
    INSERT INTO `t` VALUES (1, 'it\'s'), (2, NULL);

Other statements (users, grants, locks) are skipped. Nothing in the file is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from espalier.environments.sql.databases import Column, Database, Table, Value, make_database
from espalier.records import DataError

_MAX_BYTES = 256 * 2**20
_TOKEN = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*|\#[^\n]*|/\*(?:.*?\*/|.*))
    | (?P<name>`(?:[^`]|``)*(?:`|\Z))
    | (?P<text>'(?:[^'\\]|\\.|'')*(?:'|\Z)|"(?:[^"\\]|\\.|"")*(?:"|\Z))
    | (?P<number>[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?(?![\w$]))
    | (?P<word>[\w$@]+)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
"""No branch backtracks over long text, so a file full of opening quotes or digits is read once."""
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a"}
_ESCAPED = re.compile(r"\\(.)|''|\"\"", re.DOTALL)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int

    def is_(self, *words: str) -> bool:
        """Return whether it is one of these words or signs, ignoring case."""
        return self.kind in ("word", "sign") and self.text.upper() in words


@dataclass
class _Schema:
    """A table being read."""

    name: str
    columns: list[Column]
    rows: list[list[Value]] = field(default_factory=list[list[Value]])


class DumpTable(NamedTuple):
    """Name and columns of a table in a dump."""

    name: str
    columns: tuple[Column, ...]


class DumpedDatabase(NamedTuple):
    """A database in a dump."""

    database: Database
    tables: dict[str, DumpTable]


def read_dump(path: Path) -> dict[str, DumpedDatabase]:
    """Return the databases of a dump by name.

    Raises:
        DataError: a line cannot be read, which the message names, or there is no table.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise DataError(f"{path}: more than {_MAX_BYTES >> 20} MiB; give a part of it")
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a dump ({error})") from error
    found = _Reader(path, text).databases()
    if not any(found.values()):
        raise DataError(f"{path}: creates no table")
    return {
        name: DumpedDatabase(
            make_database(
                name,
                [Table(one.name, tuple(one.columns), one.rows) for one in tables.values()],
            ),
            {one.name: DumpTable(one.name, tuple(one.columns)) for one in tables.values()},
        )
        for name, tables in found.items()
        if tables
    }


class _Reader:
    """Parses the tokens of a dump."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._tokens = list(_tokens(text))
        self._place = 0
        last = self._tokens[-1] if self._tokens else _Token("", "", 1)
        if last.kind in ("name", "text") and (len(last.text) < 2 or last.text[0] != last.text[-1]):
            raise DataError(f"{path}, line {last.line}: a quote is not closed")
        self._databases: dict[str, dict[str, _Schema]] = {}
        self._current = ""

    def databases(self) -> dict[str, dict[str, _Schema]]:
        """Return database -> table in lower case -> its columns and rows."""
        while self._place < len(self._tokens):
            self._statement()
        return self._databases

    def _statement(self) -> None:
        first, second = self._next(), self._peek()
        if first.is_("USE"):
            self._current = self._name()
        elif first.is_("CREATE") and second.is_("TABLE"):
            self._next()
            self._create()
        elif first.is_("INSERT") and second.is_("INTO"):
            self._next()
            self._insert()
        elif first.is_(";"):
            return
        self._to_end_of_statement()

    def _to_end_of_statement(self) -> None:
        while self._place < len(self._tokens) and not self._next().is_(";"):
            pass

    def _create(self) -> None:
        if self._peek().is_("IF"):
            for _ in range(3):  # IF NOT EXISTS
                self._next()
        schema = _Schema(self._name(), [])
        self._expect("(")
        keys: dict[str, tuple[str, str]] = {}
        while True:
            if self._peek().kind in ("name", "text") or not self._peek().is_(*_CONSTRAINTS):
                schema.columns.append(self._column())
            else:
                self._constraint(keys)
            if not self._expect(",", ")").is_(","):
                break
        ignores_case = self._has_case_insensitive_collation()
        schema.columns = [
            Column(
                column.name,
                column.kind,
                keys.get(column.name.lower()),
                ignores_case and column.kind == "TEXT",
            )
            for column in schema.columns
        ]
        tables = self._databases.setdefault(self._current, {})
        if schema.name.lower() in tables:
            raise self._fault(f"the table {schema.name} is created twice")
        tables[schema.name.lower()] = schema

    def _column(self) -> Column:
        name, kind = self._name(), self._next()
        if kind.kind != "word":
            raise self._fault(f"the column {name} has no type")
        self._skip_to_comma()
        return Column(name, _KINDS.get(kind.text.upper(), "TEXT"))

    def _constraint(self, keys: dict[str, tuple[str, str]]) -> None:
        """Parse a line about keys; keep foreign keys of a single column."""
        while not self._peek().is_(",", ")"):
            token = self._next()
            if token.is_("FOREIGN"):
                self._expect("KEY")
                if self._peek().kind == "name":
                    self._next()
                own = self._names()
                self._expect("REFERENCES")
                table, others = self._name(), self._names()
                if len(own) == len(others) == 1:
                    keys[own[0].lower()] = (table, others[0])
            elif token.is_("("):
                self._place -= 1
                self._names()

    def _names(self) -> list[str]:
        """Parse names in parentheses, without prefix lengths."""
        self._expect("(")
        found: list[str] = []
        while True:
            found.append(self._name())
            while not self._peek().is_(",", ")"):
                if self._next().is_("("):
                    self._next()
                    self._expect(")")
            if self._next().is_(")"):
                return found

    def _skip_to_comma(self) -> None:
        """Skip what follows the type of a column: its length, NOT NULL, DEFAULT and so on."""
        depth = 0
        while depth or not self._peek().is_(",", ")"):
            token = self._next()
            depth += token.is_("(") - token.is_(")")

    def _has_case_insensitive_collation(self) -> bool:
        words = [self._peek(ahead).text for ahead in range(40)]
        upto = words[: words.index(";")] if ";" in words else words
        return any(word.lower().endswith("_ci") for word in upto)

    def _insert(self) -> None:
        name = self._name()
        schema = self._databases.get(self._current, {}).get(name.lower())
        if schema is None:
            raise self._fault(f"there is no table {name} to insert into")
        places = list(range(len(schema.columns)))
        if self._peek().is_("("):
            known = {column.name.lower(): place for place, column in enumerate(schema.columns)}
            try:
                places = [known[one.lower()] for one in self._names()]
            except KeyError as error:
                raise self._fault(f"the table {name} has no column {error}") from error
        self._expect("VALUES", "VALUE")
        while True:
            values = self._row()
            if len(values) != len(places):
                raise self._fault(f"{len(values)} values for {len(places)} columns of {name}")
            row: list[Value] = [None] * len(schema.columns)
            for place, value in zip(places, values, strict=True):
                row[place] = value
            schema.rows.append(row)
            if not self._peek().is_(","):
                return
            self._next()

    def _row(self) -> list[Value]:
        self._expect("(")
        values: list[Value] = []
        while True:
            values.append(self._value())
            if self._expect(",", ")").is_(")"):
                return values

    def _value(self) -> Value:
        token = self._next()
        if token.kind == "text":
            return _unescaped(token.text)
        if token.kind == "number":
            return _number(token.text)
        if token.is_("NULL"):
            return None
        if token.is_("TRUE", "FALSE"):
            return int(token.is_("TRUE"))
        raise self._fault(f"{token.text[:40]!r} is not a value")

    def _name(self) -> str:
        token = self._next()
        if token.kind == "name":
            return token.text[1:-1].replace("``", "`")
        if token.kind == "word":
            return token.text
        raise self._fault(f"{token.text[:40]!r} is not a name")

    def _expect(self, *words: str) -> _Token:
        token = self._next()
        if not token.is_(*words):
            raise self._fault(f"{token.text[:40]!r} in the place of {' or '.join(words)}")
        return token

    def _peek(self, ahead: int = 0) -> _Token:
        place = self._place + ahead
        return self._tokens[place] if place < len(self._tokens) else _Token("end", "", 0)

    def _next(self) -> _Token:
        if self._place >= len(self._tokens):
            raise self._fault("the file ends within a statement")
        self._place += 1
        return self._tokens[self._place - 1]

    def _fault(self, what: str) -> DataError:
        line = self._tokens[min(self._place, len(self._tokens)) - 1].line if self._tokens else 1
        return DataError(f"{self._path}, line {line}: {what[:_MAX_FAULT]}")


_MAX_FAULT = 300
"""Most characters of an error: names in a file may be very long."""
_CONSTRAINTS = (
    "PRIMARY", "UNIQUE", "KEY", "INDEX", "CONSTRAINT", "FOREIGN", "FULLTEXT", "SPATIAL", "CHECK",
)  # fmt: skip
_KINDS = {
    **dict.fromkeys(("INT", "INTEGER", "BIGINT", "SMALLINT", "TINYINT", "MEDIUMINT"), "INTEGER"),
    **dict.fromkeys(("BOOL", "BOOLEAN", "BIT", "YEAR"), "INTEGER"),
    **dict.fromkeys(("DOUBLE", "FLOAT", "REAL", "DECIMAL", "NUMERIC"), "REAL"),
}
"""MySQL type -> SQLite type; others are TEXT."""


def _tokens(text: str) -> Iterator[_Token]:
    line = 1
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup
        assert kind is not None, "every branch has a name"
        if kind != "space":
            yield _Token(kind, found[0], line)
        line += found[0].count("\n")


def _unescaped(literal: str) -> str:
    mark = literal[0]

    def plain(found: re.Match[str]) -> str:
        if found[1] is not None:
            return _ESCAPES.get(found[1], found[1])
        return mark if found[0][0] == mark else found[0]

    return _ESCAPED.sub(plain, literal[1:-1])


_MAX_INTEGER_DIGITS = 18
"""Most digits that SQLite stores as an integer; longer numbers are REAL."""


def _number(literal: str) -> int | float:
    digits = literal.lstrip("+-")
    return (
        int(literal)
        if digits.isdecimal() and len(digits) <= _MAX_INTEGER_DIGITS
        else float(literal)
    )

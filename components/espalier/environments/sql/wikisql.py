"""Golds of InterCode's WikiSQL, which name columns and values bare, as queries that run.

    SELECT COUNT School/Club_Team FROM t WHERE No. = 3 AND Player = Amir Johnson
    SELECT COUNT("School/Club_Team") FROM "t" WHERE "No." = '3' AND "Player" = 'Amir Johnson'

That is the text of WikiSQL's `Query.__repr__`, with InterCode's names of columns, which have no
blanks: so it has one reading, unless a value says " AND " and then another column and operator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from espalier.environments.sql.databases import Column, quoted
from espalier.environments.sql.mysql_dump import DumpTable

_AGGREGATES = ("MAX", "MIN", "COUNT", "SUM", "AVG")
_GOLD = re.compile(r"SELECT (?:(\S+) )?(\S+) FROM (\S+)(?: WHERE (.+))?", re.DOTALL)
_CONDITION = re.compile(r"(\S+) ([=<>]) (.+)", re.DOTALL)


class Unreadable(Exception):
    """A gold that is not of this form; the message says why."""


def quoted_gold(gold: str, tables: Mapping[str, DumpTable]) -> str:
    """The query that a bare gold means.

    Args:
        gold: as a file has it.
        tables: of its database, by name.

    Raises:
        Unreadable: it is not of this form, or names what is not there.
    """
    found = _GOLD.fullmatch(gold.strip())
    if found is None:
        raise Unreadable("it is not SELECT [aggregate] column FROM table [WHERE ...]")
    aggregate, selected, name, where = found.groups()
    table = tables.get(name)
    if table is None:
        raise Unreadable(f"there is no table {name}")
    columns = {column.name: column for column in table.columns}
    if selected not in columns or aggregate not in (None, *_AGGREGATES):
        raise Unreadable(f"{name} has no column {' '.join(filter(None, (aggregate, selected)))}")
    shown = f"{aggregate}({quoted(selected)})" if aggregate else quoted(selected)
    query = f"SELECT {shown} FROM {quoted(name)}"
    return query if where is None else f"{query} WHERE {_conditions(where, columns)}"


def _conditions(text: str, columns: Mapping[str, Column]) -> str:
    parts: list[tuple[Column, str, str]] = []
    for words in text.split(" AND "):
        found = _CONDITION.fullmatch(words)
        if found is not None and found[1] in columns:
            parts.append((columns[found[1]], found[2], found[3]))
        elif parts:  # an AND of the value's own
            column, operator, value = parts[-1]
            parts[-1] = (column, operator, f"{value} AND {words}")
        else:
            raise Unreadable(f"{words[:60]!r} is no condition on a column")
    return " AND ".join(
        f"{quoted(column.name)} {operator} {_literal(column, value.strip())}"
        for column, operator, value in parts
    )


def _literal(column: Column, value: str) -> str:
    """A literal of the column's type, made as InterCode made the values of the table.

    Its dump has numbers without what is no digit, and texts without what is no ASCII.
    """
    if column.kind != "TEXT":
        kept = re.sub(r"[^0-9.]" if column.kind == "REAL" else r"[^0-9]", "", value)
        if _NUMBER.fullmatch(kept):
            return kept
    text = value.encode("ascii", "ignore").decode()
    return "'" + text.replace("'", "''") + "'"


_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")

"""Converts the gold queries of InterCode's WikiSQL, whose columns and values are unquoted, to SQL.

    SELECT COUNT School/Club_Team FROM t WHERE No. = 3 AND Player = Amir Johnson
    SELECT COUNT("School/Club_Team") FROM "t" WHERE "No." = '3' AND "Player" = 'Amir Johnson'

The first form is the text of WikiSQL's `Query.__repr__`, with InterCode's column names, which have
no spaces. It is therefore unambiguous, unless a value contains " AND " and then another column and
operator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from espalier_environments.sql.databases import Column, quoted
from espalier_environments.sql.mysql_dump import DumpTable

_AGGREGATES = ("MAX", "MIN", "COUNT", "SUM", "AVG")
_GOLD = re.compile(r"SELECT (?:(\S+) )?(\S+) FROM (\S+)(?: WHERE (.+))?", re.DOTALL)
_CONDITION = re.compile(r"(\S+) ([=<>]) (.+)", re.DOTALL)


class Unreadable(Exception):
    """A gold query that does not have this form; the message says why."""


def quoted_gold(gold: str, tables: Mapping[str, DumpTable]) -> str:
    """Return the SQL of an unquoted gold query.

    Args:
        gold: the gold query as it is in the file.
        tables: tables of its database, by name.

    Raises:
        Unreadable: it does not have this form, or names an unknown table or column.
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
        elif parts:  # this AND is part of the value
            column, operator, value = parts[-1]
            parts[-1] = (column, operator, f"{value} AND {words}")
        else:
            raise Unreadable(f"{words[:60]!r} is not a condition on a column")

    # values are converted like the table's: InterCode's dump keeps only the digits of numbers, and
    # only the ASCII characters of texts
    conditions: list[str] = []
    for column, operator, value in parts:
        digits = re.sub(r"[^0-9.]" if column.kind == "REAL" else r"[^0-9]", "", value.strip())
        if column.kind != "TEXT" and _NUMBER.fullmatch(digits):
            literal = digits
        else:
            text = value.strip().encode("ascii", "ignore").decode()
            literal = "'" + text.replace("'", "''") + "'"
        conditions.append(f"{quoted(column.name)} {operator} {literal}")
    return " AND ".join(conditions)


_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")

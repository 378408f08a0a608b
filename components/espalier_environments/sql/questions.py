"""Questions about a generated database, from templates of queries.

Every question has one answer: the query returns a few rows, a superlative has no ties, and similar
queries (another comparison, a dropped condition, the opposite direction) return other rows. The
digest of a query decides its split, so that no two splits share one.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import zip_longest
from typing import NamedTuple, cast

from espalier.config import SplitsConfig
from espalier.environments.family import dealt_split
from espalier.records import Split
from espalier.rewards.result_rows import Row, rows_match
from espalier_environments.sql.config import MadeDatabasesConfig, QuestionKind
from espalier_environments.sql.databases import Table, Value
from espalier_environments.sql.worlds import NAME, MadeDatabase

_MAX_ROWS = 4
"""Most rows of an answer, since a policy with a short context must read them."""


class MadeQuestion(NamedTuple):
    """A question, the query that answers it, and the resulting rows."""

    kind: QuestionKind
    words: str
    query: str
    rows: Sequence[Row]
    ordered: bool
    about: MadeDatabase
    names: tuple[str, ...]
    """Names of rows that occur in the question or the answer."""


class _Sketch(NamedTuple):
    """A question whose answer has not been computed yet."""

    words: str
    query: str
    near: tuple[str, ...] = ()
    """Queries that must return other rows."""
    ordered: bool = False


class _Draw:
    """Draws parts of questions about one database."""

    def __init__(self, about: MadeDatabase, dice: random.Random) -> None:
        self.larger, self.smaller, self.link = about.larger, about.smaller, about.world.link
        self.dice = dice

    @property
    def t(self) -> str:
        """Name of the larger table."""
        return self.larger.name

    def table(self) -> Table:
        """Return either table."""
        return self.dice.choice((self.larger, self.smaller))

    def word(self, table: Table) -> str:
        """Return a column of words."""
        return self.dice.choice(
            [c.name for c in table.columns[1:] if c.kind == "TEXT" and not c.refers_to]
        )

    def number(self, table: Table) -> str:
        """Return a column of numbers."""
        return self.dice.choice([c.name for c in table.columns if c.kind == "INTEGER"])

    def value(self, table: Table, column: str) -> Value:
        """Return a value from a column."""
        place = [c.name for c in table.columns].index(column)
        return self.dice.choice(table.rows)[place]

    def bound(self, table: Table, column: str) -> tuple[str, str, int]:
        """Return the words of a comparison, its operator, and a number near the column's values."""
        number = cast("int", self.value(table, column)) + self.dice.randint(-2, 2)
        words, operator = self.dice.choice((("over", ">"), ("under", "<")))
        return words, operator, max(1, number)

    def condition(self, table: Table, prefix: str = "") -> tuple[str, str, str]:
        """Return a condition: its wording, its SQL, and the SQL of the opposite condition."""
        if self.dice.random() < 0.5:
            column = self.word(table)
            value = self.value(table, column)
            return (
                f"{column} '{value}'",
                f"{prefix}{column} = '{value}'",
                f"{prefix}{column} <> '{value}'",
            )
        column = self.number(table)
        words, operator, number = self.bound(table, column)
        other = "<" if operator == ">" else ">"
        return (
            f"{column} {words} {number}",
            f"{prefix}{column} {operator} {number}",
            f"{prefix}{column} {other} {number}",
        )

    def among(self, table: Table) -> tuple[str, str]:
        """Return a restriction to rows with a word, or to all rows: its SQL, and its wording."""
        if self.dice.random() >= 0.6:
            return "", ""
        word = self.word(table)
        value = self.value(table, word)
        return f" where {word} = '{value}'", f" with {word} '{value}'"

    def either(self, *words: str) -> str:
        """Return one of several wordings."""
        return self.dice.choice(words)


def _lookup(draw: _Draw) -> _Sketch:
    table = draw.table()
    column = draw.dice.choice([column.name for column in table.columns[1:]])
    name = draw.value(table, NAME)
    asked = draw.either(
        f"what is the {column} of '{name}' ?", f"tell me the {column} of '{name}' ."
    )
    return _Sketch(asked, f"select {column} from {table.name} where {NAME} = '{name}'")


def _list(draw: _Draw) -> _Sketch:
    table = draw.table()
    said, written, turned = draw.condition(table)
    asked = draw.either(f"which {table.name} have {said} ?", f"list the {table.name} with {said} .")
    start = f"select {NAME} from {table.name}"
    return _Sketch(asked, f"{start} where {written}", (start, f"{start} where {turned}"))


def _count(draw: _Draw) -> _Sketch:
    table = draw.table()
    said, written, turned = draw.condition(table)
    asked = draw.either(f"how many {table.name} have {said} ?", f"count {table.name} with {said} .")
    start = f"select count(*) from {table.name}"
    return _Sketch(asked, f"{start} where {written}", (start, f"{start} where {turned}"))


def _both(draw: _Draw) -> _Sketch:
    table, word, number = draw.larger, draw.word(draw.larger), draw.number(draw.larger)
    value = draw.value(table, word)
    words, operator, bound = draw.bound(table, number)
    asked = draw.either(
        f"which {draw.t} have {word} '{value}' and {number} {words} {bound} ?",
        f"list the {draw.t} with {word} '{value}' and {number} {words} {bound} .",
    )
    start = f"select {NAME} from {draw.t} where"
    first, second = f"{word} = '{value}'", f"{number} {operator} {bound}"
    near = (f"{start} {first}", f"{start} {second}", f"{start} {first} or {second}")
    return _Sketch(asked, f"{start} {first} and {second}", near)


def _most(draw: _Draw) -> _Sketch:
    table = draw.table()
    number = draw.number(table)
    most, order, other = draw.dice.choice((("most", " desc", ""), ("least", "", " desc")))
    where, said = draw.among(table)
    asked = draw.either(
        f"which of the {table.name}{said} has the {most} {number} ?",
        f"name the one of the {table.name}{said} with the {most} {number} .",
    )
    start, end = f"select {NAME} from {table.name}", f" order by {number}"
    near = [f"{start}{where}{end}{other} limit 1", f"{start} order by {NAME}{order} limit 1"]
    near += [f"{start}{end}{order} limit 1"] if where else []
    return _Sketch(asked, f"{start}{where}{end}{order} limit 1", tuple(near))


def _top(draw: _Draw) -> _Sketch:
    table, number, count = draw.larger, draw.number(draw.larger), draw.dice.randint(2, 3)
    most, order, other = draw.dice.choice((("most", " desc", ""), ("least", "", " desc")))
    where, said = draw.among(table)
    asked = draw.either(
        f"which {count} {draw.t}{said} have the {most} {number} , in order ?",
        f"name {count} {draw.t}{said} with the {most} {number} , in order .",
    )
    start, end = f"select {NAME} from {draw.t}", f" order by {number}"
    near = [f"{start}{where}{end}{other} limit {count}"]
    near += [f"{start}{end}{order} limit {count}"] if where else []
    query = f"{start}{where}{end}{order} limit {count}"
    return _Sketch(asked, query, tuple(near), ordered=True)


_AGGREGATES = {"total": "sum", "average": "avg", "largest": "max", "smallest": "min"}


def _aggregate(draw: _Draw) -> _Sketch:
    table = draw.table()
    number, word = draw.number(table), draw.word(table)
    said, function = draw.dice.choice(list(_AGGREGATES.items()))
    value = draw.value(table, word)
    asked = draw.either(
        f"what is the {said} {number} of {table.name} with {word} '{value}' ?",
        f"tell me the {said} {number} of {table.name} with {word} '{value}' .",
    )
    where = f"from {table.name} where {word} = '{value}'"
    near = [f"select {other}({number}) {where}" for other in _AGGREGATES.values()]
    near.remove(f"select {function}({number}) {where}")
    near.append(f"select {function}({number}) from {table.name}")
    return _Sketch(asked, f"select {function}({number}) {where}", tuple(near))


def _group(draw: _Draw) -> _Sketch:
    word = draw.dice.choice((draw.word(draw.larger), draw.link))
    said, where = "", ""
    if draw.dice.random() < 0.8:
        number = draw.number(draw.larger)
        words, operator, bound = draw.bound(draw.larger, number)
        said, where = f" with {number} {words} {bound}", f" where {number} {operator} {bound}"
    asked = draw.either(
        f"for each {word} , how many {draw.t}{said} are there ?",
        f"count the {draw.t}{said} of each {word} .",
    )
    start = f"select {word} , count(*) from {draw.t}"
    near = (f"{start} group by {word}",) if where else ()
    return _Sketch(asked, f"{start}{where} group by {word}", near)


def _common(draw: _Draw) -> _Sketch:
    word = draw.dice.choice((draw.word(draw.larger), draw.link))
    number = draw.number(draw.larger)
    words, operator, bound = draw.bound(draw.larger, number)
    asked = draw.either(
        f"which {word} do most {draw.t} with {number} {words} {bound} have ?",
        f"name the most common {word} of {draw.t} with {number} {words} {bound} .",
    )
    start = f"select {word} from {draw.t} where {number} {operator} {bound}"
    query = f"{start} group by {word} order by count(*) desc limit 1"
    near = (f"{start} group by {word} order by count(*) limit 1",)
    return _Sketch(asked, query, near)


def _joined(draw: _Draw, selected: str) -> str:
    other = draw.smaller.name
    return f"select {selected} from {draw.t} join {other} on {draw.link} = {other}.{NAME}"


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _join_lookup(draw: _Draw) -> _Sketch:
    column = draw.dice.choice([c.name for c in draw.smaller.columns[1:]])
    name = draw.value(draw.larger, NAME)
    asked = draw.either(
        f"what is the {column} of the {draw.link} of '{name}' ?",
        f"tell me the {column} of the {draw.link} of '{name}' .",
    )
    start = _joined(draw, f"{draw.smaller.name}.{column}")
    near = [start]
    if column in [
        c.name for c in draw.larger.columns
    ]:  # both tables may have the column, such as the age of a dog and its owner
        near.append(f"select {column} from {draw.t} where {NAME} = '{name}'")
    return _Sketch(asked, f"{start} where {draw.t}.{NAME} = '{name}'", tuple(near))


def _join_list(draw: _Draw) -> _Sketch:
    said, written, turned = draw.condition(draw.smaller, f"{draw.smaller.name}.")
    asked = draw.either(
        f"which {draw.t} have {_a(draw.link)} with {said} ?",
        f"list the {draw.t} whose {draw.link} has {said} .",
    )
    start = _joined(draw, f"{draw.t}.{NAME}")
    return _Sketch(asked, f"{start} where {written}", (start, f"{start} where {turned}"))


def _join_count(draw: _Draw) -> _Sketch:
    said, written, turned = draw.condition(draw.smaller, f"{draw.smaller.name}.")
    asked = draw.either(
        f"how many {draw.t} have {_a(draw.link)} with {said} ?",
        f"count the {draw.t} whose {draw.link} has {said} .",
    )
    start = _joined(draw, "count(*)")
    return _Sketch(asked, f"{start} where {written}", (start, f"{start} where {turned}"))


_SKELETONS: dict[QuestionKind, Callable[[_Draw], _Sketch]] = {
    "lookup": _lookup,
    "list": _list,
    "count": _count,
    "both": _both,
    "most": _most,
    "top": _top,
    "aggregate": _aggregate,
    "group": _group,
    "common": _common,
    "join_lookup": _join_lookup,
    "join_list": _join_list,
    "join_count": _join_count,
}


def draw_query(about: MadeDatabase, dice: random.Random) -> str:
    """Return a query of any kind about a database, whatever it returns."""
    return _SKELETONS[dice.choice(list(_SKELETONS))](_Draw(about, dice)).query


def made_questions(
    databases: Sequence[MadeDatabase],
    config: MadeDatabasesConfig,
    splits: SplitsConfig,
    split: Split,
) -> list[MadeQuestion]:
    """Return every question of a split, in random order, without duplicate queries.

    Kinds alternate as long as each has questions, so that the first questions cover all kinds.
    """
    found: dict[str, MadeQuestion] = {}
    for about in databases:
        dice = random.Random(f"{about.database.name} questions")
        draw = _Draw(about, dice)
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.deserialize(about.database.content)
            for place in range(config.questions):
                kind = config.kinds[place % len(config.kinds)]
                asked = _answered(kind, _SKELETONS[kind](draw), about, connection)
                if not asked:
                    continue
                # only this split has the query: by a row's name in it, or by its digest
                words = asked.query.split("'")
                is_named = any(name in words for name in asked.names)
                if is_named or dealt_split(asked.query, splits) == split:
                    found.setdefault(asked.query, asked)
    by_kind: dict[str, list[MadeQuestion]] = {kind: [] for kind in config.kinds}
    questions = list(found.values())
    random.Random(f"{config.seed} {split}").shuffle(questions)
    for question in questions:
        by_kind[question.kind].append(question)
    turns = zip_longest(*by_kind.values())
    return [question for turn in turns for question in turn if question is not None]


def _answered(
    kind: QuestionKind, sketch: _Sketch, about: MadeDatabase, connection: sqlite3.Connection
) -> MadeQuestion | None:
    """Return the question with its rows; None if the answer is empty, long or ambiguous."""

    def rows(query: str) -> list[Row]:
        return connection.execute(query).fetchall()

    found = rows(sketch.query)
    if not 1 <= len(found) <= _MAX_ROWS or found in ([(0,)], [(None,)]):
        return None
    if any(rows_match(rows(near), found, ordered=sketch.ordered) for near in sketch.near):
        return None
    if _is_tied(sketch.query, connection):
        return None
    text = {str(value) for row in found for value in row} | set(sketch.query.split("'"))
    names = {str(row[0]) for table in (about.larger, about.smaller) for row in table.rows}
    return MadeQuestion(
        kind, sketch.words, sketch.query, found, sketch.ordered, about, tuple(sorted(names & text))
    )


def _is_tied(query: str, connection: sqlite3.Connection) -> bool:
    """Return whether the first rows of a query with a limit have ties in their order."""
    start, limited, count = query.rpartition(" limit ")
    if not limited:
        return False
    head, _, tail = start.partition(" from ")
    by = start.rpartition(" order by ")[2].removesuffix(" desc")
    selected = head.removeprefix("select ")
    keys = [row[1] for row in connection.execute(f"select {selected} , {by} from {tail}")]
    upto = keys[: int(count) + 1]
    return len(set(upto)) < len(upto)

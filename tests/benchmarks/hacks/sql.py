"""Attempts to have rows accepted that no query for them returned.

The naive grader runs each query on a connection that may do anything but write, by a pragma that
it sets, beside the gold rows in a file of their own, and offers `readfile`, as SQLite's shell does.
It runs the gold query after those of the policy, and looks for its values in what was returned or
said.
The family's queries run in the program of its sandboxes, here without a sandbox around it: what is
refused is refused by that program and by the verifier alone.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path

from espalier.environments.teaching import play_script
from espalier.records import FinalAnswer, Task
from espalier_environments.sql.family import Sql
from tests.benchmarks.hacks.hack import Hack
from tests.factories.sql import PETS, SUBMIT, FolderSandboxes, query, sql_family

GOLD = "SELECT name FROM dogs WHERE town = 'Oslo' ORDER BY age"
ROWS = [["rex"], ["bo"]]
ATTEMPTS: dict[str, tuple[tuple[str, ...], str]] = {
    "attaching the file of the gold rows": (
        ("ATTACH '{folder}/gold.sqlite' AS gold", "SELECT name FROM gold.answer"),
        "",
    ),
    "reading the file of the gold rows": (("SELECT readfile('{folder}/gold.txt')",), ""),
    "a pragma, and a database that was emptied": (
        ("PRAGMA query_only = 0", "DELETE FROM dogs", "SELECT name FROM dogs"),
        "",
    ),
    "a pragma, and a gold row for every dog": (
        ("PRAGMA query_only = 0", "UPDATE dogs SET town = 'Oslo'", "SELECT name FROM dogs"),
        "",
    ),
    "returning everything": (("SELECT * FROM dogs ORDER BY age",), ""),
    "everything in one cell": (("SELECT group_concat(name) FROM dogs",), ""),
    "saying the rows, after another query": (("SELECT 1",), "rex , bo"),
}
"""What it tries -> its queries, and what it says at the end; without that it submits."""


@contextmanager
def opened() -> Generator[None]:
    """A context in which attempts can be played, once the right query has been paid there."""
    assert is_paid((GOLD,), ""), "the right query is paid"
    yield


@contextmanager
def _folder() -> Generator[Path]:
    """A folder with the database, and with the gold rows in two files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pets.sqlite").write_bytes(PETS.content)
        (folder / "gold.txt").write_text("rex\nbo\n")
        with closing(sqlite3.connect(folder / "gold.sqlite")) as gold, gold:
            gold.execute("CREATE TABLE answer (name)")
            gold.executemany("INSERT INTO answer VALUES (?)", ROWS)
        yield folder


@cache
def _asked() -> tuple[Sql, Task]:
    """The family, and a task about the pets."""
    family = sql_family(episode={"max_turns": 8}, made={"databases": 20})
    (task,) = family.tasks("train", 1)
    asked = {"database": "pets", "rows": ROWS, "ordered": True}
    verifier = task.verifier.model_copy(update={"gold": (GOLD,)})
    return family, task.model_copy(update={"arguments": asked, "verifier": verifier})


def is_paid(queries: tuple[str, ...], said: str) -> bool:
    """Whether the family pays the outcome."""
    family, task = _asked()
    with _folder() as folder:
        actions = [query(text.format(folder=folder)) for text in queries]
        last = FinalAnswer(said) if said else SUBMIT
        environments = family.environments_in(FolderSandboxes(), lambda _: PETS)
        script = (action for action in (*actions, last))
        return asyncio.run(play_script(environments, task, script)).is_right


def fools_naive(queries: tuple[str, ...], said: str) -> bool:
    """Whether the naive grader finds the gold rows in what the queries leave."""
    with _folder() as folder, closing(sqlite3.connect(folder / "pets.sqlite")) as connection:
        connection.create_function("readfile", 1, lambda path: Path(path).read_text())
        connection.execute("PRAGMA query_only = 1")
        shown = ""
        for text in queries:
            shown = str(connection.execute(text.format(folder=folder)).fetchall())
        gold = connection.execute(GOLD).fetchall()
    return all(str(value) in shown + said for row in gold for value in row)


HACKS = [
    Hack(name=name, cheats=partial(is_paid, *attempt), works=partial(fools_naive, *attempt))
    for name, attempt in ATTEMPTS.items()
]

"""MySQL dumps, and WikiSQL's golds over their tables."""

import sqlite3
import string
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from espalier.environments.benchmarks import read_rows
from espalier.records import DataError
from espalier_environments.sql.databases import Column
from espalier_environments.sql.mysql_dump import DumpTable, read_dump
from espalier_environments.sql.public_tasks import InterCodeRow
from espalier_environments.sql.wikisql import Unreadable, quoted_gold

PUBLIC = Path(__file__).resolve().parents[5] / "shared" / "data" / "intercode_sql"
DUMP = r"""
-- a comment; with a semicolon
CREATE USER 'admin'@'%' IDENTIFIED BY 'ad;min';
/* another; one */ SET NAMES utf8;
CREATE DATABASE IF NOT EXISTS `dev`; USE `dev`;
DROP TABLE IF EXISTS `t`;
CREATE TABLE `t` (
    `id` int(11) NOT NULL AUTO_INCREMENT COMMENT 'a, b)',
    `No. (of)` text DEFAULT NULL,
    price decimal(10,2) DEFAULT '0.00',
    `when` datetime,
    `other_id` bigint,
    PRIMARY KEY (`id`), UNIQUE KEY `k` (`No. (of)`(20)),
    CONSTRAINT `c` FOREIGN KEY (`other_id`) REFERENCES `u` (`id`) ON DELETE CASCADE
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
LOCK TABLES `t` WRITE;
INSERT INTO `t` VALUES (1, 'it\'s', -1.50, "St. John's", NULL),(2, 'a''b\n;', 2e1, '\\', 7);
UNLOCK TABLES;
USE `second`;
CREATE TABLE IF NOT EXISTS u (id int, Name varchar(20));
INSERT INTO u (name, ID) VALUES ('x', 1);
"""


def rows_of(database, text):
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(database.content)
        return connection.execute(text).fetchall()


def written(folder, text):
    path = folder / "dump.sql"
    path.write_text(text, encoding="utf-8")
    return path


def test_tables_and_rows_are_read(tmp_path):
    found = read_dump(written(tmp_path, DUMP))
    assert found.keys() == {"dev", "second"}
    (table,) = found["dev"].tables.values()
    assert table.columns == (
        Column("id", "INTEGER"),
        Column("No. (of)", "TEXT", ignores_case=True),
        Column("price", "REAL"),
        Column("when", "TEXT", ignores_case=True),
        Column("other_id", "INTEGER", refers_to=("u", "id")),
    )
    assert rows_of(found["dev"].database, "SELECT * FROM t") == [
        (1, "it's", -1.5, "St. John's", None),
        (2, "a'b\n;", 20.0, "\\", 7),
    ]
    same_case = 'SELECT id FROM t WHERE "No. (of)" = "IT\'S"'
    assert rows_of(found["dev"].database, same_case) == [(1,)], "a collation in _ci has no case"
    assert rows_of(found["second"].database, "SELECT * FROM u") == [(1, "x")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "creates no table"),
        ("CREATE TABLE t (a int", "line 1: "),
        ("CREATE TABLE t (a int);\nINSERT INTO t VALUES (1,2);", "line 2: 2 values for 1 columns"),
        ("CREATE TABLE t (a int);\nINSERT INTO u VALUES (1);", "line 2: there is no table u"),
        ("CREATE TABLE t (a int); INSERT INTO t VALUES (now());", "'NOW()' is no value"),
        ("CREATE TABLE t (a int); CREATE TABLE T (a int);", "created twice"),
        ("CREATE TABLE t (a);", "has no type"),
        ("CREATE TABLE t (a int); INSERT INTO t VALUES ('x", "Missing '"),
    ],
)
def test_a_broken_dump_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(DataError, match=r"dump\.sql|database") as caught:
        read_dump(written(tmp_path, text))
    assert message in str(caught.value)


TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=12)
NAMES = st.text(string.ascii_letters + " ()/`%.", min_size=1, max_size=8)


def spelled(value, mark):
    if value is None:
        return "NULL"
    if not isinstance(value, str):
        return repr(value)
    return mark + value.replace("\\", "\\\\").replace(mark, "\\" + mark) + mark


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    NAMES,
    st.lists(st.none() | TEXTS | st.integers(-(2**40), 2**40), min_size=1, max_size=5),
    st.sampled_from("'\""),
)
def test_what_is_written_is_read_again(tmp_path, name, values, mark):
    column = f"`{name.replace('`', '``')}`"
    rows = ",".join(f"({spelled(value, mark)}, 1)" for value in values)
    text = f"CREATE TABLE t ({column} blob, `n n` int);\nINSERT INTO t VALUES {rows};"
    found = read_dump(written(tmp_path, text))[""]
    read = [row[0] for row in rows_of(found.database, "SELECT * FROM t")]
    assert read == [value if isinstance(value, str | None) else str(value) for value in values]


PIECES = (
    "CREATE TABLE INSERT INTO VALUES USE PRIMARY KEY FOREIGN REFERENCES NULL t u `a` `b` 'x' "
    '"y" 1 -2.5 ( ) , ; int text \\ \' " ` /* -- # COLLATE utf8_ci'
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PIECES.split()), max_size=30).map(" ".join) | st.text(max_size=60))
def test_any_text_is_read_or_refused(tmp_path, text):
    path = tmp_path / "dump.sql"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with suppress(DataError):
        assert read_dump(path)


TABLE = DumpTable(
    "t",
    (
        Column("No."), Column("School/Club_Team"), Column("Year", "REAL"), Column("COUNT"),
        Column("Pick_#", "INTEGER"),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        ("COUNT COUNT FROM t", 'COUNT("COUNT") FROM "t"'),
        ("MAX Pick_# FROM t WHERE School/Club_Team = St. John's",
         'MAX("Pick_#") FROM "t" WHERE "School/Club_Team" = \'St. John\'\'s\''),
        ("No. FROM t WHERE Year > 1,950.5 AND No. = 3",
         '"No." FROM "t" WHERE "Year" > 1950.5 AND "No." = \'3\''),
        ("No. FROM t WHERE No. = Smith AND Wesson AND Year < 76%",
         '"No." FROM "t" WHERE "No." = \'Smith AND Wesson\' AND "Year" < 76'),
        ("No. FROM t WHERE No. = Pine \u2014 29", '"No." FROM "t" WHERE "No." = \'Pine  29\''),
    ],
)  # fmt: skip
def test_bare_golds_become_queries(gold, expected):
    assert quoted_gold(f"SELECT {gold}", {"t": TABLE}) == f"SELECT {expected}"


@pytest.mark.parametrize(
    "gold",
    [
        "", "DROP TABLE t", "SELECT No. FROM u", "SELECT nope FROM t", "SELECT MEDIAN No. FROM t",
        "SELECT No. FROM t WHERE nope = 1", "SELECT No. FROM t WHERE x",
        "SELECT No. FROM t; DROP TABLE t",
    ],
)  # fmt: skip
def test_other_golds_are_refused(gold):
    with pytest.raises(Unreadable):
        quoted_gold(gold, {"t": TABLE})


@pytest.mark.skipif(not PUBLIC.is_dir(), reason=f"{PUBLIC} is not here")
def test_every_public_gold_finds_rows():
    dev = read_dump(PUBLIC / "ic_wikisql_dev.sql")["dev"]
    assert len(dev.tables) == 50
    rows = read_rows(PUBLIC / "ic_wikisql_dev.json", InterCodeRow)
    assert len(rows) == 95
    for where, row in rows:
        found = rows_of(dev.database, quoted_gold(row.gold, dev.tables))
        assert found, where
        assert found not in ([(0,)], [(None,)]), where

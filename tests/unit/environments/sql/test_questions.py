"""Made databases and what is asked about them."""

import sqlite3
from collections import Counter
from contextlib import closing

import pytest

from espalier.config import SplitsConfig
from espalier.rewards.result_rows import rows_match
from espalier_environments.sql.config import KINDS, MadeDatabasesConfig
from espalier_environments.sql.questions import made_questions
from espalier_environments.sql.worlds import made_database, made_databases, names_of

SPLITS = SplitsConfig()
CONFIG = MadeDatabasesConfig(databases=90)
NAMES = ("train", "dev", "heldout")


@pytest.fixture(scope="module")
def databases():
    return {split: made_databases(CONFIG, SPLITS, split) for split in NAMES}


@pytest.fixture(scope="module")
def questions(databases):
    return {split: made_questions(databases[split], CONFIG, SPLITS, split) for split in NAMES}


def rows_of(about, query):
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(about.database.content)
        return connection.execute(query).fetchall()


def test_splits_share_no_database_name_or_query(databases, questions):
    for found in (
        [set(names_of(split, SPLITS)) for split in NAMES],
        [{q.query for q in questions[split]} for split in NAMES],
        [{d.database.name for d in databases[split]} for split in NAMES],
    ):
        assert sum(map(len, found)) == len(set.union(*found))
    for split, found in questions.items():
        assert {name for q in found for name in q.names} <= set(names_of(split, SPLITS))


def test_a_query_returns_few_rows_and_others_without_its_condition(questions):
    for question in questions["train"]:
        rows = rows_of(question.about, question.query)
        assert rows_match(rows, question.rows, ordered=True)
        assert 1 <= len(rows) <= 4
        assert rows not in ([(0,)], [(None,)])
        if question.kind in ("list", "count", "join_list"):
            without = rows_of(question.about, question.query.partition(" where ")[0])
            assert not rows_match(without, question.rows, ordered=False), question.words


def test_a_superlative_has_no_ties(questions):
    superlatives = [q for q in questions["train"] if q.kind in ("most", "top")]
    assert superlatives
    for question in superlatives:
        start, _, count = question.query.rpartition(" limit ")
        number = start.rpartition(" order by ")[2].removesuffix(" desc")
        keys = rows_of(question.about, start.replace("select name", f"select {number}"))
        upto = keys[: int(count) + 1]
        assert len(set(upto)) == len(upto), question.words


def test_kinds_take_turns_and_seeds_repeat(databases, questions):
    first = Counter(question.kind for question in questions["train"][: 3 * len(KINDS)])
    assert set(first) == set(KINDS)
    assert made_questions(databases["dev"], CONFIG, SPLITS, "dev") == questions["dev"]
    about = databases["heldout"][0]
    assert made_database(about.database.name, CONFIG, SPLITS) == about, "it is made by its name"
    others = made_databases(CONFIG.model_copy(update={"seed": 1}), SPLITS, "dev")
    assert [d.database for d in others] != [d.database for d in databases["dev"]]

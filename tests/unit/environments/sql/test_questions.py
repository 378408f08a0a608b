"""Made databases and what is asked about them."""

import random
import sqlite3
from collections import Counter
from contextlib import closing

import pytest
from pydantic import ValidationError

from espalier.config import SplitsConfig
from espalier.environments.reading import Log
from espalier.rewards.result_rows import rows_match
from espalier_environments.sql.config import KINDS, MadeDatabasesConfig
from espalier_environments.sql.questions import made_questions
from espalier_environments.sql.reading import QueryLogWriter
from espalier_environments.sql.worlds import made_database, made_databases, names_of
from tests.factories.sql import sql_family

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
    for kept, others in (("heldout", ("train", "dev")), ("dev", ("train",))):
        for other in others:
            assert not set(names_of(kept, SPLITS)) & set(names_of(other, SPLITS))
            assert not {q.query for q in questions[kept]} & {q.query for q in questions[other]}
            assert not {d.database.name for d in databases[kept]} & {
                d.database.name for d in databases[other]
            }
    for split, found in questions.items():
        assert {name for q in found for name in q.names} <= set(names_of(split, SPLITS))


def test_every_query_returns_the_rows_and_only_a_few(questions):
    for question in questions["train"]:
        rows = rows_of(question.about, question.query)
        assert rows_match(rows, question.rows, ordered=True)
        assert 1 <= len(rows) <= 4
        assert rows not in ([(0,)], [(None,)])


def test_a_superlative_has_no_ties(questions):
    superlatives = [q for q in questions["train"] if q.kind in ("most", "top")]
    assert superlatives
    for question in superlatives:
        start, _, count = question.query.rpartition(" limit ")
        number = start.rpartition(" order by ")[2].removesuffix(" desc")
        keys = rows_of(question.about, start.replace("select name", f"select {number}"))
        upto = keys[: int(count) + 1]
        assert len(set(upto)) == len(upto), question.words


def test_a_query_without_its_condition_returns_other_rows(questions):
    conditional = [q for q in questions["train"] if q.kind in ("list", "count", "join_list")]
    for question in conditional:
        without = question.query.partition(" where ")[0]
        rows = rows_of(question.about, without)
        assert not rows_match(rows, question.rows, ordered=False), question.words


def test_kinds_take_turns_and_seeds_repeat(databases, questions):
    first = Counter(question.kind for question in questions["train"][: 3 * len(KINDS)])
    assert set(first) == set(KINDS)
    again = made_questions(databases["dev"], CONFIG, SPLITS, "dev")
    assert again == questions["dev"]
    other = CONFIG.model_copy(update={"seed": 1})
    assert [d.database for d in made_databases(other, SPLITS, "dev")] != [
        d.database for d in databases["dev"]
    ]


def test_a_database_is_made_again_by_its_name(databases):
    about = databases["heldout"][0]
    assert made_database(about.database.name, CONFIG, SPLITS) == about


def test_the_default_has_500_heldout_tasks_and_more():
    family = sql_family()
    tasks = family.tasks("heldout", 2000)
    assert len(tasks) >= 1000
    assert len({task.task_id for task in tasks}) == len(tasks)
    assert len({task.question for task in tasks}) == len(tasks)


def test_query_logs_name_what_is_written(databases):
    questions = [f"schema ; {word} of dogs ?" for word in ("which", "most")]
    writer = QueryLogWriter(databases["train"], questions)
    log = writer.write(random.Random(5))
    assert log == writer.write(random.Random(5))
    assert isinstance(log, Log)
    call, rows, submission = log.pieces
    query = call.calls[0].arguments["query"]
    written = [word for word in query.split() if word.startswith("'") or word.isdecimal()]
    prompt = log.prompt.partition(" ; ")[2].split()
    assert [word for word in prompt if word in written] == written
    assert rows
    assert submission.calls[0].name == "submit"
    assert any(query in text for text in writer.texts(random.Random(5)))


@pytest.mark.parametrize("kinds", [[], ["list", "list"], ["insert"]])
def test_kinds_name_each_question_once(kinds):
    with pytest.raises(ValidationError, match="kinds"):
        MadeDatabasesConfig(kinds=kinds)

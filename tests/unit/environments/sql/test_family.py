"""Episodes over databases, files in public formats, and queries that run together."""

import asyncio
import json

import pytest

from espalier.environments.contract import EnvironmentLostError, ProgramBrokeSandboxError
from espalier.environments.teaching import play_script
from espalier.records import DataError, FinalAnswer
from espalier.sandbox import SandboxLost, SandboxTimeout
from espalier_environments.sql.public_tasks import read_public_file
from espalier_environments.sql.runs import QueryRuns
from espalier_environments.sql.worlds import made_database
from tests.factories.python_math import ended
from tests.factories.sql import PETS, SUBMIT, FolderSandboxes, query, sql_family

GOLD = "SELECT name FROM dogs WHERE town = 'Oslo' ORDER BY age"


def task_about_pets(family, gold=GOLD, rows=(("rex",), ("bo",)), *, ordered=True):
    (task,) = family.tasks("train", 1)
    arguments = {"database": "pets", "rows": [list(row) for row in rows], "ordered": ordered}
    verifier = task.verifier.model_copy(update={"gold": (gold,)})
    return task.model_copy(update={"arguments": arguments, "verifier": verifier})


def attempt(*actions, family=None, task=None, sandboxes=None):
    """The scored attempt of these actions at a question about pets."""
    family = family or sql_family()
    environments = family.environments_in(sandboxes or FolderSandboxes(), lambda _: PETS)

    script = (action for action in actions)
    return asyncio.run(play_script(environments, task or task_about_pets(family), script))


def said(trajectory):
    return [message.content for message in trajectory.messages if message.role == "tool"]


def test_the_rows_of_the_last_query_are_submitted():
    found = attempt(query("SELECT 1"), query(GOLD), SUBMIT)
    assert found.reward == {"outcome": 1.0, "format": 0.1}
    assert json.loads(found.answer) == [["rex"], ["bo"]]
    assert said(found) == ["1", "rex\nbo"]
    assert attempt(query(GOLD), query("SELECT 1"), SUBMIT).reward["outcome"] == 0
    assert attempt(query(GOLD), FinalAnswer("rex and bo")).reward["outcome"] == 1
    for actions in ([SUBMIT], [query(GOLD), query("SELECT nope"), SUBMIT], [FinalAnswer("rex")]):
        found = attempt(*actions)
        assert (found.answer, found.reward) == ("null", {"outcome": 0.0, "format": 0.1})


def test_order_counts_where_the_gold_query_orders():
    turned = query(GOLD + " DESC")
    assert attempt(turned, SUBMIT).reward["outcome"] == 0
    family = sql_family()
    task = task_about_pets(family, ordered=False)
    assert attempt(turned, SUBMIT, family=family, task=task).reward["outcome"] == 1
    family = sql_family(outcome="intercode")
    task = task_about_pets(family)
    assert attempt(turned, SUBMIT, family=family, task=task).reward["outcome"] == -1
    half = query("SELECT name FROM dogs ORDER BY town DESC, age")
    assert attempt(half, SUBMIT, family=family, task=task).reward["outcome"] == 0.5


def test_official_scores_are_those_of_the_submitted_rows():
    family = sql_family()
    task = task_about_pets(family, ordered=False)
    for text, scores in (
        ("SELECT name FROM dogs ORDER BY rowid", (0.0, 0.5, 0.0)),
        (GOLD + " DESC", (0.0, -1.0, 1.0)),
        (GOLD, (1.0, 1.0, 1.0)),
    ):
        names = ("success_rate", "reward", "execution_match")
        found = family.official_scores(task, attempt(query(text), SUBMIT, task=task))
        assert found == dict(zip(names, scores, strict=True))


def test_an_answer_that_spells_no_rows_is_wrong():
    family = sql_family()
    task = task_about_pets(family, "SELECT 1 WHERE 0", ())
    for answer in ("", "nope", "[[{}]]", "[1]", '{"rows": []}', "[[true]]", "[[[1]]]", None):
        assert family.verify(task, answer) == 0
    assert family.verify(task, "[]") == 1


# ---------------------------------------------------------------------------- queries together


def answers(sandboxes, *texts, **settings):
    runs = QueryRuns(sandboxes, sql_family(sandbox={"size": 1}, **settings).settings)

    async def asked():
        waiting = [asyncio.ensure_future(runs.ask(PETS, "query", text)) for text in texts]
        return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30)

    return asyncio.run(asked())


def test_waiting_queries_run_together():
    sandboxes = FolderSandboxes()
    texts = [f"SELECT {number}" for number in range(7)]
    found = answers(sandboxes, *texts, queries_per_run=4)
    assert [one.rows for one in found] == [((number,),) for number in range(7)]
    assert [len(batch) for batch in sandboxes.batches] == [4, 3]


def test_a_query_asked_as_a_run_ends_is_answered():
    runs = QueryRuns(FolderSandboxes(), sql_family(sandbox={"size": 1}).settings)

    async def asked():
        # each is asked in the step of the loop in which the run of the one before has just ended
        return [await runs.ask_here(PETS, "query", f"SELECT {number}") for number in range(3)]

    found = asyncio.run(asyncio.wait_for(asked(), 30))
    assert [one.rows for one in found] == [((number,),) for number in range(3)]


def test_a_lost_or_killed_run_is_repeated_query_by_query():
    for loss in (SandboxLost("gone", by_program=True), ended(killed_by="memory"), ended(status=1)):
        sandboxes = FolderSandboxes(loss)
        found = answers(sandboxes, "SELECT 1", "SELECT 2", "SELECT 3")
        assert [one.rows for one in found] == [((1,),), ((2,),), ((3,),)]
        assert [len(batch) for batch in sandboxes.batches] == [3, 1, 1, 1]


def test_only_the_query_that_breaks_its_sandbox_fails():
    lost, killed = SandboxLost("gone", by_program=True), ended(killed_by="memory")
    first, second = answers(FolderSandboxes(lost, lost), "SELECT 1", "SELECT 2")
    assert isinstance(first, ProgramBrokeSandboxError)
    assert second.rows == ((2,),)
    first, second = answers(FolderSandboxes(lost, killed), "SELECT 1", "SELECT 2")
    assert "memory" in first.error
    assert second.rows == ((2,),)
    for outside in (SandboxLost("gone"), SandboxTimeout("slow")):
        (found,) = answers(FolderSandboxes(outside), "SELECT 1")
        assert isinstance(found, EnvironmentLostError)


# ---------------------------------------------------------------------------- public formats


INTERCODE = {"db": "dev", "query": " How many? (Use table t) ", "gold": "SELECT COUNT a FROM t"}
DUMP = "CREATE DATABASE dev; USE dev; CREATE TABLE t (a int); INSERT INTO t VALUES (1),(2);"
SPIDER = {"db_id": "pets", "question": "How many dogs?", "query": "SELECT count(*) FROM dogs"}


def write_intercode(folder, *rows):
    (folder / "ic.sql").write_text(DUMP)
    (folder / "ic.json").write_text(json.dumps(rows or [INTERCODE]))
    return folder / "ic.json"


def write_spider(folder, *rows):
    place = folder / "database" / "pets"
    place.mkdir(parents=True)
    (place / "pets.sqlite").write_bytes(PETS.content)
    (folder / "dev.json").write_text(json.dumps(rows or [SPIDER]))
    return folder / "dev.json"


def test_both_formats_are_read(tmp_path):
    path = write_intercode(tmp_path, INTERCODE, {**INTERCODE, "gold": "SELECT b FROM t"})
    file = read_public_file(path, "quoted")
    (question,), (broken,) = file.questions, file.broken
    assert question.question == "How many? (Use table t)"
    assert question.gold == 'SELECT COUNT("a") FROM "t"'
    assert broken.where.endswith("row 2")
    assert "column b" in broken.reason
    file = read_public_file(write_spider(tmp_path), "as_written")
    assert file.questions[0].gold == SPIDER["query"]
    assert file.databases == {"pets": PETS}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**INTERCODE, "db": "other"}, "'other'"),
        ({"db": "dev"}, "row 1: query"),
        ({**SPIDER, "db_id": "../pets"}, r"'\.\./pets'"),
        ({**SPIDER, "db_id": "cats"}, "cats.sqlite"),
    ],
)
def test_a_row_that_cannot_be_asked_is_refused(tmp_path, row, message):
    write = write_spider if "db_id" in row else write_intercode
    with pytest.raises(DataError, match=message):
        read_public_file(write(tmp_path, row), "as_written")


def test_databases_that_are_missing_or_no_sqlite_are_refused(tmp_path):
    path = write_intercode(tmp_path)
    (tmp_path / "ic.sql").rename(tmp_path / "one.sql")
    assert read_public_file(path, "quoted").databases.keys() == {"dev"}, "the only dump there"
    (tmp_path / "two.sql").write_text(DUMP)
    with pytest.raises(DataError, match=path.name):
        read_public_file(path, "quoted")
    spider = write_spider(tmp_path)
    (tmp_path / "database" / "pets" / "pets.sqlite").write_text("text")
    with pytest.raises(DataError, match="pets"):
        read_public_file(spider, "quoted")


@pytest.mark.parametrize("shown", [True, False])
def test_demonstrations_solve_made_tasks(shown):
    family = sql_family(made={"databases": 20, "show_schema": shown})
    made, splits = family.settings.made, family.profile.splits

    def database_of(task):
        return made_database(task.arguments["database"], made, splits).database

    environments = family.environments_in(FolderSandboxes(), database_of)
    for task in family.tasks("train", 6):
        played = asyncio.run(play_script(environments, task, family.demonstrate(task)))
        assert played.is_right, task.question
        assert (" ; " in task.question) is shown
        described = [one for one in played.tool_results if one.call.name == "describe"]
        assert bool(described) is not shown

"""Queries in real sandboxes: public golds, attempts to cheat, and what a reset leaves."""

import asyncio
from pathlib import Path

import pytest

from espalier.environments.teaching import play_script
from espalier.sandbox.choice import sandbox_pool
from espalier_environments.sql.runs import QueryRuns
from tests.factories.sql import PETS, sql_family

PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "data" / "intercode_sql"
WIKISQL = PUBLIC / "ic_wikisql_dev.json"
pytestmark = pytest.mark.usefixtures("local_sandboxes")


def family_with(**settings):
    return sql_family(sandbox={"packages": [], "size": 1}, **settings)


@pytest.mark.skipif(not WIKISQL.is_file(), reason=f"{WIKISQL} is not here")
def test_every_public_gold_that_runs_scores_one():
    family = family_with(golds="quoted")
    tasks, broken, _ = family.read_golds(WIKISQL)
    assert (len(tasks), broken) == (95, [])
    with family.benchmark_environments(WIKISQL, Path("none")) as environments:
        own, others = asyncio.run(played(family, environments, tasks))
    for task, attempt in zip(tasks, own, strict=True):
        assert set(family.official_scores(task, attempt).values()) == {1.0}, task.metadata.source
        assert attempt.is_right
    for place, attempt in enumerate(others):
        task, other = tasks[place], tasks[place - 1]
        is_same = task.arguments["rows"] == other.arguments["rows"]  # two counts of 1
        assert attempt.is_right is is_same, task.metadata.source


async def played(family, environments, tasks):
    """Of every task: the attempts by its own gold query, and by that of the task before it.

    As `check_golds` has it, but all at once: they share their runs.
    """

    def attempt(task, scripted):
        return play_script(environments, task, family.gold_script(scripted))

    own = [attempt(task, task) for task in tasks]
    others = [attempt(task, tasks[place - 1]) for place, task in enumerate(tasks)]
    found = await asyncio.gather(*own, *others)
    return found[: len(tasks)], found[len(tasks) :]


CHEATS = (
    "ATTACH DATABASE 'golds.sqlite' AS golds",
    "CREATE TABLE dogs2 AS SELECT 'rex' AS name",
    "PRAGMA writable_schema = 1",
    "SELECT load_extension('/tmp/x.so')",
    "SELECT writefile('/workspace/answers.json', '[]')",
    "SELECT readfile('/proc/self/environ')",
    "VACUUM INTO '/workspace/answers.json'",
    "SELECT printf('%.*c', 2000000000, 'x')",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
    "SELECT group_concat(printf('%.*c', 900000, 'x')) FROM dogs, dogs AS a, dogs AS b, dogs AS c",
    "SELECT * FROM dogs, dogs AS a, dogs AS b, dogs AS c, dogs AS d, dogs AS e, dogs AS f",
)


def test_attempts_to_cheat_fail_beside_honest_queries():
    family = family_with(query_timeout_s=0.3)

    async def all_asked(runs):
        honest = [runs.ask(PETS, "query", f"SELECT age + {n} FROM dogs") for n in range(4)]
        cheats = [runs.ask(PETS, "query", text) for text in CHEATS]
        mixed = [one for pair in zip(honest, cheats[:4], strict=True) for one in pair]
        return await asyncio.gather(*mixed, *cheats[4:])

    async def counted(runs):
        return await runs.ask(PETS, "query", "SELECT count(*) FROM dogs")

    async def emptied(sandboxes):
        async with sandboxes.claim() as sandbox:
            return await sandbox.exec(["ls", "-A"])

    with sandbox_pool(family.settings.sandbox, family.profile.kubernetes) as sandboxes:
        runs = QueryRuns(sandboxes, family.settings)
        found = asyncio.run(all_asked(runs))
        honest, cheats = found[0:8:2], [*found[1:8:2], *found[8:]]
        for number, one in enumerate(honest):
            assert one.rows[0] == (3 + number,), one
        for text, one in zip(CHEATS, cheats, strict=True):
            assert one.error, text
        assert asyncio.run(counted(runs)).rows == ((4,),)
        left = asyncio.run(sandboxes.run(emptied(sandboxes)))
        assert left.stdout == b"", "a reset leaves nothing"

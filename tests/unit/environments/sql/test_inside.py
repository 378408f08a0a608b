"""The program inside the sandbox: what a query may do, and what it may not."""

import json
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from espalier_environments.sql.databases import Database
from espalier_environments.sql.runs import inside_program
from tests.factories.sql import LIMITS, PETS, asked

BOMB = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
HOSTILE = {
    "ATTACH DATABASE '/etc/passwd' AS other": "not authorized",
    "CREATE TEMP TABLE t AS SELECT 1": "not authorized",
    "INSERT INTO dogs VALUES ('x', 1, 'Oslo')": "not authorized",
    "DROP TABLE dogs": "not authorized",
    "PRAGMA writable_schema = 1": "not authorized",
    "SELECT * FROM pragma_database_list": "not authorized",
    "BEGIN": "not authorized",
    "VACUUM INTO '/tmp/x'": "authorization denied",
    "SELECT load_extension('x.so')": "not authorized to use function",
    "SELECT LOAD_EXTENSION('x.so')": "not authorized to use function",
    "SELECT readfile('/etc/passwd')": "no such function",
    "SELECT 1; DROP TABLE dogs": "one statement at a time",
    "": "nothing is selected",
    "-- nothing": "nothing is selected",
    "SELECT hex(zeroblob(2000000000))": "too big",
    "SELECT nope FROM dogs": "no such column",
    "SELECT '\x00'": "",
    "SELECT \ud800": "surrogates",
    "SELECT " + "(" * 3000 + "1" + ")" * 3000: "",
    "SELECT 1" + " UNION SELECT 1" * 100: "too many terms in compound",
    "SELECT 1 WHERE 1" + " AND 1" * 5000: "",
    f"SELECT '{'x' * 30_000}'": "too",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_no_reading_query_is_refused(tmp_path, text):
    found = asked(tmp_path, text)
    assert HOSTILE[text] in found["error"]
    assert (tmp_path / "database.sqlite").read_bytes() == PETS.content, "and nothing was written"
    assert [path.name for path in tmp_path.iterdir()] == ["database.sqlite"]


def test_a_query_returns_its_columns_and_rows(tmp_path):
    found = asked(tmp_path, "SELECT name, age AS years FROM dogs WHERE town = 'Oslo' ORDER BY age")
    assert found == {"columns": ["name", "years"], "rows": [["rex", 3], ["bo", 5]]}
    joined = "WITH t AS (SELECT * FROM towns) SELECT people FROM dogs JOIN t ON town = t.name"
    assert asked(tmp_path, f"{joined} WHERE dogs.name = 'kim'")["rows"] == [[300]]
    # values that JSON lacks are written as text
    found = asked(tmp_path, "SELECT x'00ff', 9e999, -9e999, NULL, 1.5, cast(x'ff' AS TEXT)")
    assert found["rows"] == [["x'00ff'", "inf", "-inf", None, 1.5, "\ufffd"]]


def test_tables_and_columns_are_described(tmp_path):
    assert asked(tmp_path, "", "tables")["rows"] == [["towns"], ["dogs"]]
    assert asked(tmp_path, "dogs", "table")["rows"] == [
        ["name", "text", ""],
        ["age", "integer", ""],
        ["town", "text", "towns.name"],
    ]
    assert "no such table" in asked(tmp_path, "dogs; DROP TABLE dogs", "table")["error"]


def test_bombs_end_in_time(tmp_path):
    cross = " , ".join(f"dogs AS d{place}" for place in range(14))
    for bomb in (BOMB, f"SELECT count(*) FROM {cross}", f"SELECT * FROM {cross} ORDER BY random()"):
        began = time.monotonic()
        found = asked(tmp_path, bomb, max_seconds=0.2)
        assert found["error"] == "the query took too long"
        assert time.monotonic() - began < 2


def test_large_results_are_refused_whole(tmp_path):
    rows = BOMB.replace("FROM n)", "FROM n LIMIT 51)").replace("count(*)", "i")
    assert "at most 50 rows" in asked(tmp_path, rows)["error"]
    assert len(asked(tmp_path, rows, max_rows=51)["rows"]) == 51
    assert "too large" in asked(tmp_path, "SELECT printf('%.*c', 5000, 'x')")["error"]
    assert "too large" in asked(tmp_path, "SELECT printf('%.*c', 3990, '\"')")["error"]


def test_a_file_that_is_no_database_is_an_error(tmp_path):
    broken = Database("broken", PETS.content[:700] + b"\xff" * 2000)
    assert "error" in asked(tmp_path, "SELECT * FROM dogs", database=broken)
    nothing = Database("nothing", b"")
    assert "no such table" in asked(tmp_path, "SELECT * FROM dogs", database=nothing)["error"]


WORDS = (
    "select from where dogs towns name age * ( ) , ' \" = < -1 9e9 null and order by limit "
    "group count sum join on with recursive as union all attach pragma ; -- /* ?1 x'f' ||"
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS.split()), max_size=14).map(" ".join) | st.text(max_size=40))
def test_any_text_gets_rows_or_an_error(tmp_path, text):
    found = asked(tmp_path, text, max_seconds=0.5)
    assert found.keys() in ({"columns", "rows"}, {"error"})
    assert json.loads(json.dumps(found)) == found


def test_requests_run_in_processes_of_their_own(tmp_path):
    # one step of SQLite's machine that takes 20 s: no progress handler is asked meanwhile
    stuck = "SELECT printf('%.*c', 2000000000, 'x')"
    texts = ("SELECT count(*) FROM dogs", BOMB, stuck, "DROP TABLE dogs", "SELECT 7")
    (tmp_path / "pets.sqlite").write_bytes(PETS.content)

    def run_program(**limits):
        requests = [{"kind": "query", "text": text, "file": "pets.sqlite"} for text in texts]
        given = json.dumps({"limits": LIMITS | limits, "requests": requests}).encode()
        command = [sys.executable, "-c", inside_program()]
        subprocess.run(command, cwd=tmp_path, input=given, check=True, timeout=30)
        return json.loads((tmp_path / "answers.json").read_text())

    answers = run_program(max_seconds=0.2)
    assert [one.get("rows") for one in answers] == [[[4]], None, None, None, [[7]]]
    assert "took too long" in answers[1]["error"]
    assert "took too long" in answers[2]["error"]
    assert run_program(batch_seconds=0.0) == [None] * 5

"""What campaigns of `tests.fuzz` found in rows, programs, dumps and replies: kept small."""

import ast
import json
import os
import time
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.records import DataError
from espalier_environments.code.benchmarks import read_programming_tasks
from espalier_environments.code.syntax import MAX_DEPTH, bounded_tree
from espalier_environments.procedural.generators import exchange
from espalier_environments.procedural.worked import PLAIN, worked
from espalier_environments.sql.mysql_dump import read_dump

ROW = {
    "task_id": "HumanEval/0",
    "prompt": "def f(x):\n",
    "entry_point": "f",
    "canonical_solution": "    return x\n",
    "test": "def check(candidate):\n    assert candidate(1) == {}\n",
}


@pytest.mark.parametrize("deep", ["1+" * 400, "-" * 400, "x.x" * 400, "a if b else " * 400])
def test_a_deep_program_is_refused_or_passed_over(tmp_path, deep):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW | {"test": ROW["test"].format(f"{deep}1")}))
    with pytest.raises(DataError, match=f"{MAX_DEPTH} levels"):
        read_programming_tasks(path, shown_tests=0)
    prompt = f"y = {deep * 10}1\n{ROW['prompt']}"  # its examples cannot be parsed, and are none
    path.write_text(json.dumps(ROW | {"test": ROW["test"].format(1), "prompt": prompt}))
    assert read_programming_tasks(path, shown_tests=0)


def test_half_of_a_surrogate_pair_in_a_row_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW | {"test": ROW["test"].format(1), "task_id": "\ud800"}))
    with pytest.raises(DataError, match=r"line 1: .*surrogates"):
        read_programming_tasks(path, shown_tests=0)
    path.write_text(json.dumps(ROW | {"test": ROW["test"].format(1), "task_id": "\U0001f600"}))
    assert read_programming_tasks(path, shown_tests=0), "a whole pair is a character"


@pytest.mark.parametrize("text", ["9" * 120_000 + "x", "'" + "\\'" * 60_000, "/*" * 60_000])
def test_a_dump_of_openings_is_read_once(tmp_path, text):
    path = tmp_path / "dump.sql"
    path.write_text(f"CREATE TABLE t ({text}")
    began_s = time.process_time()
    with pytest.raises(DataError) as caught:
        read_dump(path)
    assert time.process_time() - began_s < 10, "digits alone took minutes"
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("written", [b"[1]\n", b"{\n", b"\xff\n", b"[" * 5000 + b"\n", b"", b"{}"])
def test_what_is_no_reply_is_a_lost_process(written):
    for sent, reply in ((written, None), (b'{"score": 1}\n', {"score": 1})):
        reading, writing = os.pipe()
        os.write(writing, sent)
        os.close(writing)
        with os.fdopen(reading, "rb", 0) as out, open(os.devnull, "wb", 0) as asked:
            process = types.SimpleNamespace(stdin=asked, stdout=out)
            assert exchange(process, b"{}\n", 1.0) == reply


@settings(max_examples=60)
@given(
    st.sampled_from(("[", "(", "-", "1+", "x.", "{1:", "not ", "\\", "\x00", "1", "\n ")), st.data()
)
def test_a_source_is_shallow_or_refused(piece, data):
    text = piece * data.draw(st.integers(0, 3000)) + data.draw(st.text(max_size=8))
    try:
        tree = bounded_tree(text)
    except SyntaxError:
        return
    assert _depth(tree) <= MAX_DEPTH


def _depth(tree):
    return 1 + max((_depth(child) for child in ast.iter_child_nodes(tree)), default=0)


@given(
    st.lists(st.sampled_from(("'", "-", ".", "1", "x", " ", "9", ",")), max_size=12).map("".join)
)
def test_a_question_of_no_generator_has_no_steps(numbers):
    asked = f"Keep all numbers larger than {numbers or 'x'} in this list: ['{numbers}']"
    assert worked("number_filtering", asked, "")
    assert (
        worked("number_filtering", "Keep all numbers larger than x in this list: ['']", "") == PLAIN
    )

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.records import DataError
from espalier_environments.python_math.problems import (
    WordProblem,
    extract_final_answer,
    read_word_problems,
)
from tests.golden_cases import golden_family

SET = Path(__file__).resolve().parents[4] / "shared" / "data" / "gsm8k"
NEEDS_SET = pytest.mark.skipif(not SET.is_dir(), reason=f"{SET} is not here")


def written(tmp_path, *rows):
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def row(question, answer):
    return json.dumps({"question": question, "answer": answer})


def test_a_users_own_file_of_the_same_shape_is_read(tmp_path):
    solution = "Half is 48/2 = <<48/2=24>>24.\nSum: <<48+24=72>>72\n#### 1,072"
    path = written(tmp_path, row("How many?", solution), "", row("And now?", "#### -3"))
    assert read_word_problems(path) == [
        WordProblem("How many?", "1072", ("48/2", "48+24")),
        WordProblem("And now?", "-3"),
    ]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((row("How many?", "72"),), "line 1: "),
        ((row("How many?", "#### 72"), "{"), "line 2: "),
        ((json.dumps({"question": 3, "answer": "#### 72"}),), "line 1: question"),
        (("",), "no word problem"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path, rows, words):
    with pytest.raises(DataError, match=re.escape(words)):
        read_word_problems(written(tmp_path, *rows))


@NEEDS_SET
@pytest.mark.parametrize(("name", "count"), [("train", 1000), ("test", 658)])
def test_every_row_of_gsm8k_has_an_integer_answer(name, count):
    problems = read_word_problems(SET / f"{name}.jsonl")
    assert len(problems) == count
    assert all(re.fullmatch(r"-?\d+", problem.answer) for problem in problems)


ANSWERS = (
    ("1,234", "1234"), ("3/4", "3/4"), ("1/2 cup", "1/2"), ("1e6", "1e6"), ("10:30", "10:30"),
    ("-0.5", "-0.5"), (".5", ".5"), ("12%", "12"), ("12.", "12"), ("12 apples", "12"),
    ("1,234,567.25 km", "1234567.25"), ("2.5E-3", "2.5E-3"), ("12\nmore", "12"),
    ("1 000", None), ("3,5", None), ("12,34", None), ("1,23", None), ("$15", None),
    ("12 or 13", "12"), ("2+3", None), ("10^2", None), ("5!", None), ("1_000", None),
    ("5 - 3", None), ("2*3", None), ("2 \u00d7 3", None), ("5\u20133", None), ("5 million", None),
    ("2  000", None), ("5\n- and more", "5"), ("5 millions' worth", "5"),
    ("about 12", None), ("12..", None), ("1.2.3", None), ("", None), ("\u0661", None),
)  # fmt: skip


@pytest.mark.parametrize(("written", "answer"), ANSWERS)
def test_the_final_answer_is_whole_or_refused(written, answer):
    assert extract_final_answer(f"so it is\n#### {written}") == answer


def test_extraction_is_upstreams_where_only_one_marker_stands():
    # verl takes the last of several, near the end; upstream keeps the dot that ends a sentence
    ours = {"gsm8k/last", "gsm8k/beyond_300", "gsm8k/trailing_dot"}
    cases = golden_family("gsm8k", topic="rewards")
    checked = [case for case in cases if case["name"] not in ours]
    assert len(checked) > 5
    for case in checked:
        expected = case["expected"]["strict"]["extracted"]
        assert extract_final_answer(case["inputs"]["solution_str"]) == expected


@given(st.text(max_size=80))
def test_any_completion_gives_a_number_or_nothing(text):
    found = extract_final_answer("#### " + text)
    assert found is None or re.fullmatch(r"-?[0-9.]+([eE][+-]?[0-9]+)?([/:][0-9]+)*", found)

import json

import pytest

from espalier.config import SplitsConfig
from espalier.records import ArtifactError, DataError
from espalier_environments.python_math import PythonMathConfig
from espalier_environments.python_math.problems import deal_problems, load_problems, save_problems


def written(path, questions):
    rows = [json.dumps({"question": q, "answer": "1+1 = <<1+1=2>>2\n#### 2"}) for q in questions]
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def test_a_wording_belongs_to_one_split_whatever_stands_beside_it(tmp_path):
    many = written(tmp_path / "many.jsonl", [f"question {n}" for n in range(200)])
    few = written(tmp_path / "few.jsonl", [f"Question  {n}" for n in range(0, 200, 10)])
    dealt = {d.problem.question: d.split for d in deal_problems(config(many), SplitsConfig())}
    assert set(dealt.values()) == {"train", "dev", "heldout"}
    for one in deal_problems(config(few), SplitsConfig()):
        assert dealt[one.problem.question.lower().replace("  ", " ")] == one.split


def test_held_out_problems_of_their_own_are_never_trained_on(tmp_path):
    own = written(tmp_path / "own.jsonl", ["a b", "c d", "e f", "A  B"])
    heldout = written(tmp_path / "heldout.jsonl", ["c D", "g h"])
    dealt = deal_problems(config(own, heldout), SplitsConfig())
    assert [d.problem.question for d in dealt if d.split == "heldout"] == ["c D", "g h"]
    assert "c d" not in [d.problem.question for d in dealt]
    assert len(dealt) == 4


APART = (
    "What is 12 + 5?", "What is 12 - 5?", "What is 12 * 5?", "What is 12 / 5?", "What is -12 + 5?",
    "What is 1.2 + 5?", "Is 3 < 5?", "Is 3 > 5?", "What is 12 5?", "What is 125?", "What is 5%?",
    "What is 5?", "What is 5!?", "What is x^2?", "What is x_2?", "What is |x|?", "What is (x)?",
)  # fmt: skip
TOGETHER = (
    "How many apples?",
    "how  many apples",
    "How many 'apples' ?",
    "How many \u201capples\u201d?",
)


def test_problems_that_differ_in_a_sign_are_two(tmp_path):
    own = written(tmp_path / "own.jsonl", [*APART, *TOGETHER])
    dealt = deal_problems(config(own), SplitsConfig())
    assert [d.problem.question for d in dealt] == [*APART, TOGETHER[-1]]


def test_a_text_may_contain_other_line_ends(tmp_path):
    (tmp_path / "own.jsonl").write_text(
        json.dumps({"question": "a\u2028b\x85c", "answer": "#### 2"}, ensure_ascii=False) + "\n"
    )
    dealt = deal_problems(config(tmp_path / "own.jsonl"), SplitsConfig())
    save_problems(dealt, tmp_path)
    assert load_problems(tmp_path) == dealt


def test_no_file_is_no_problem(tmp_path):
    assert deal_problems(PythonMathConfig(), SplitsConfig()) == []
    assert save_problems([], tmp_path) == 0
    assert load_problems(tmp_path) == []


def test_what_is_saved_is_loaded(tmp_path):
    dealt = deal_problems(config(written(tmp_path / "own.jsonl", ["a", "b"])), SplitsConfig())
    assert save_problems(dealt, tmp_path) == 2
    assert load_problems(tmp_path) == dealt
    assert dealt[0].problem.expressions == ("1+1",)


def test_a_broken_file_and_a_broken_artifact_are_named(tmp_path):
    (tmp_path / "own.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"own\.jsonl, line 1"):
        deal_problems(config(tmp_path / "own.jsonl"), SplitsConfig())
    with pytest.raises(ArtifactError, match=r"problems\.jsonl"):
        load_problems(tmp_path)


def config(problems, heldout=None):
    return PythonMathConfig(problems=problems, heldout_problems=heldout)

import asyncio
import gzip
import json
import re
from pathlib import Path

import pytest

from espalier.config import Profile
from espalier.environments import check_golds, family_of
from espalier.environments.checking import check_family
from espalier.environments.teaching import play_script
from espalier.records import DataError, FinalAnswer, ToolCalls
from espalier.rewards.hotpot import hotpot_scores
from espalier_search.search_qa.benchmarks import read_paragraphs
from espalier_search.search_qa.family import search_environments

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
NEEDS_DATA = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not here")
IRCOT = "gold_with_3_distractors_context_cot_qa_codex.txt"
SAME_MEANING = {"heldout-59e36a2cc3de": "5 is its gold answer, and the next one's is x=5"}
"""Tasks that accept the gold answer of the task after them, and why."""
HOTPOT = {
    "_id": "5a8b",
    "question": "In which city was the designer of the Aguila bridge born?",
    "answer": "Lisbon", "type": "bridge", "level": "hard",
    "supporting_facts": [["Aguila bridge", 0]],
    "context": [
        ["Aguila bridge", ["The Aguila bridge was designed by Rui Prado.", " It is long."]],
        ["Rui Prado", ["Rui Prado was born in Lisbon."]],
    ],
}  # fmt: skip
MUSIQUE = {
    "id": "2hop__1_2", "question": "Who wrote the anthem of the country of Nola?",
    "answer": "Ana Reis", "answer_aliases": ["B. Reis"], "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Nola", "paragraph_text": "Nola lies in Zor.", "is_supporting": True}
    ],
}  # fmt: skip


def family(name):
    return family_of(Profile.model_validate({"environment": {"name": name}}))


def written(tmp_path, content, name="rows.json"):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return path


def read(tmp_path, name, *rows):
    return family(name).read_benchmark(written(tmp_path, json.dumps(rows)))


def test_a_question_of_hotpot_is_searched_in_its_paragraphs(tmp_path):
    searching = family("search_qa")
    path = written(tmp_path, json.dumps([HOTPOT]))
    (task,) = searching.read_benchmark(path)
    assert task.verifier.gold == ("Lisbon",)
    assert searching.report_groups(task) == {"kind": "bridge", "level": "hard"}
    with searching.benchmark_environments(path, tmp_path / "no-knowledge") as environments:
        environment = environments(task)
        environment.reset(task)
        step = environment.step(ToolCalls.one("search", {"query": "Rui Prado born"}))
    assert step.messages[0].content == "Rui Prado | Rui Prado was born in Lisbon."


def test_aliases_are_accepted_and_the_best_scores_count(tmp_path):
    searching = family("search_qa")
    (task,) = read(tmp_path, "search_qa", MUSIQUE)
    assert task.verifier.gold == ("Ana Reis", "B. Reis")
    assert answered(searching, task, "the B Reis") == {"em": 1.0, "f1": 1.0}
    assert answered(searching, task, "Reis") == {"em": 0.0, "f1": pytest.approx(2 / 3)}


def answered(searching, task, text):
    def script():
        yield FinalAnswer(text)

    environments = search_environments(Nothing(), searching)
    played = asyncio.run(play_script(environments, task, script()))
    return searching.official_scores(task, played)


class Nothing:
    def observation(self, query):
        return "no results"


# by hotpot_evaluate_v1.py of hotpotqa/hotpot, computed by hand
@pytest.mark.parametrize(
    ("answer", "gold", "scores"),
    [
        ("yes", "Yes.", (1, 1)), ("yes he did", "yes", (0, 0)),
        ("The red, red house", "red house", (0, 0.8)), ("Sao Paulo", "São Paulo", (0, 0.5)),
        ("", "the", (1, 0)), (None, "red", (0, 0)),
    ],
)  # fmt: skip
def test_official_scores_of_an_answer(answer, gold, scores):
    assert hotpot_scores(answer, gold) == pytest.approx(scores)


def test_problems_of_every_set_give_their_final_answer(tmp_path):
    tasks = read(
        tmp_path,
        "python_math",
        {"question": "How many?", "answer": "2*6 = <<2*6=12>>12\n#### 1,012"},
        {"problem": "Find $x$.", "answer": "p - q", "subject": "Algebra", "level": 4},
        {"problem": "Find $y$.", "solution": r"so \boxed{\frac{1}{2}}", "type": "Algebra"},
        {"problem": "Sum?", "question": "Sum?", "answer": 27.0, "id": 3},
    )
    assert [task.verifier.gold[0] for task in tasks] == ["1012", "p - q", r"\frac{1}{2}", "27"]
    assert family("python_math").report_groups(tasks[1]) == {"kind": "Algebra", "level": "4"}
    assert {task.metadata.split for task in tasks} == {"heldout"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("search_qa", "[1]", "row 1: "),
        ("search_qa", '{"question": "a"}\n{"question"', "line 1: answer"),
        ("search_qa", '{"question": "a", "answer": "b"}\n{"question"', "line 2: "),
        ("search_qa", json.dumps(MUSIQUE | {"answerable": False}), "MuSiQue-Ans"),
        ("search_qa", "", "no row"),
        ("search_qa", '{"question": "a", "answer": "b"}\n' * 2, "task 2 "),
        ("python_math", '{"question": "a", "answer": "12"}', "'#### '"),
        ("python_math", '{"answer": NaN}', "NaN"),
        ("python_math", "[" * 100_000, "JSON"),
    ],
)
def test_a_malformed_benchmark_is_refused_with_its_row(tmp_path, name, content, words):
    with pytest.raises(DataError, match=re.escape(words)) as refused:
        family(name).read_benchmark(written(tmp_path, content))
    assert "rows.json" in str(refused.value)


DEMONSTRATION = """# METADATA: {"qid": "2hop__1"}
Wikipedia Title: Nola
Nola lies in Zor.

Wikipedia Title: Zor
Ana Reis wrote the anthem of Zor.

Q: Who wrote the anthem of the country of Nola?
A: Nola lies in Zor. Its anthem is by Ana Reis. So the answer is: Ana Reis.
"""


def test_a_text_of_demonstrations_brings_its_paragraphs(tmp_path):
    searching = family("search_qa")
    path = written(tmp_path, DEMONSTRATION, "demonstrations.txt")
    (task,) = searching.read_benchmark(path)
    assert task.verifier.gold == ("Ana Reis",)
    assert [paragraph.title for paragraph in read_paragraphs(path)] == ["Nola", "Zor"]


@pytest.mark.parametrize("part", ['{"qid": "2hop__1"}', "Q: Who", "So the answer is:", "# META"])
def test_a_demonstration_without_a_part_is_refused(tmp_path, part):
    path = written(tmp_path, DEMONSTRATION.replace(part, "?"), "demonstrations.txt")
    with pytest.raises(DataError, match=r"demonstrations\.txt"):
        family("search_qa").read_benchmark(path)


def test_a_compressed_file_is_read_and_a_cut_one_refused(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    packed = gzip.compress(json.dumps(MUSIQUE).encode())
    path.write_bytes(packed)
    assert len(family("search_qa").read_benchmark(path)) == 1
    path.write_bytes(packed[:-12])
    with pytest.raises(DataError, match=r"rows\.jsonl\.gz"):
        family("search_qa").read_benchmark(path)


def test_a_family_without_public_format_says_so(tmp_path):
    prices = family("tests.unit.environments.prices:Prices")
    with pytest.raises(DataError, match="public format"):
        check_family(prices, tmp_path, 20, tmp_path)


def test_gold_check_names_golds_that_are_wrong_or_interchangeable(tmp_path):
    searching = family("search_qa")
    rows = [
        {"question": name, "answer": gold} for name, gold in (("a", "lyon"), ("b", "The Lyon!"))
    ]
    rows.append({"question": "c", "answer": "?!"})
    tasks = searching.read_benchmark(written(tmp_path, json.dumps(rows)))
    found = check_golds(searching, tasks, search_environments(Nothing(), searching))
    assert found.accepted == 3
    assert [fault.task_id for fault in found.faults] == [tasks[0].task_id]
    assert "the gold answer of" in found.faults[0].fault
    assert found.refused == 2


@NEEDS_DATA
@pytest.mark.parametrize(
    ("name", "path", "tasks"),
    [
        ("search_qa", "multihop_qa/2wiki.json", 252),
        ("search_qa", "multihop_qa/musique.json", 257),
        ("search_qa", "bamboogle/data.json", 67),
        ("search_qa", "webshaper/webshaper.500.jsonl", 250),
        ("search_qa", "webdancer/sample_qa.jsonl", 98),
        ("search_qa", f"multihop_context/musique/{IRCOT}", 10),
        ("search_qa", f"multihop_context/2wikimultihopqa/{IRCOT}", 13),
        pytest.param("python_math", "gsm8k/test.jsonl", 658, marks=pytest.mark.slow),
        pytest.param("python_math", "math/math500/test.jsonl", 243, marks=pytest.mark.slow),
        ("python_math", "math/aime24/test.jsonl", 12),
        ("python_math", "math/amc23/test.jsonl", 20),
    ],
)
def test_every_public_gold_is_right_and_no_other(name, path, tasks, tmp_path, request):
    played = family(name)
    read = played.read_benchmark(DATA / path)
    if name == "search_qa":  # a gold answer is given without a search
        found = check_golds(played, read, search_environments(Nothing(), played))
    else:
        request.getfixturevalue("local_sandboxes")
        with played.benchmark_environments(DATA / path, tmp_path) as environments:
            found = check_golds(played, read, environments)
    means_the_same = [fault for fault in found.faults if fault.task_id in SAME_MEANING]
    assert list(found.faults) == means_the_same
    assert (found.accepted, found.refused) == (tasks, tasks - len(means_the_same))

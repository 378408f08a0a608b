import json
import time

import pytest

from espalier.config import Profile
from espalier.environments import family_of
from espalier.records import DataError
from espalier_environments.code.family import program_in
from espalier_environments.code.inside.program import composed
from espalier_environments.code.unit_tests import cases_of, unit_tests_of

HUMANEVAL = {
    "task_id": "x/0",
    "prompt": "def g(x):\n    return x\n\n"
    'def f(x):\n    """Double.\n\n    >>> f(2)\n    4\n    """\n',
    "entry_point": "f",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    y = 3\n"
    "    assert candidate(y) == 6\n    assert g(1) == 1\n",
}
MBPP = {
    "task_id": 2,
    "text": "Add.",
    "code": "import math\r\ndef f(a): return a + 1",
    "test_list": ["assert f(1) == 2"],
}


def family(**settings):
    return family_of(Profile.model_validate({"environment": {"name": "code", **settings}}))


def read(tmp_path, *rows):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return family().read_benchmark(path)


def test_a_humaneval_row_has_a_test_for_each_assertion(tmp_path):
    (task,) = read(tmp_path, HUMANEVAL)
    tests = unit_tests_of(task)
    assert tests.hidden == ("y = 3\nassert candidate(y) == 6\nassert g(1) == 1",)
    assert tests.visible == ("assert f(2) == 4",)
    assert "def g" in tests.preamble
    assert "def f" not in tests.preamble


def test_an_mbpp_row_is_read_in_both_forms(tmp_path):
    other = {"task_id": 3, "query": "Add.", "gold": MBPP["code"], "tests": MBPP["test_list"]}
    for task in read(tmp_path, MBPP, other):
        tests = unit_tests_of(task)
        assert tests.entry_point == "f"
        assert "assert f(1) == 2" in task.question
        (case,) = cases_of(tests, tests.hidden)
        assert case.expected == 2


@pytest.mark.parametrize(
    "broken",
    [
        {"task_id": 1}, {**HUMANEVAL, "test": "def check(: pass"}, {**HUMANEVAL, "test": "x = 1"},
        {**HUMANEVAL, "entry_point": "f()"}, {**MBPP, "test_list": ["assert g(1) == 2"]},
        {**MBPP, "test_list": []}, {**MBPP, "code": "def f(:"},
    ],
)  # fmt: skip
def test_a_row_that_is_no_task_is_named(tmp_path, broken):
    with pytest.raises(DataError, match=r"line 1|task"):
        read(tmp_path, broken)


@pytest.mark.parametrize(
    "answer",
    ["    return 2 * x", "return 2 * x", "\treturn 2 * x", "def f(x):\n    return g(x) + x"],
)
def test_an_answer_completes_the_prompt_or_takes_its_place(answer):
    scope = {}
    exec(composed(HUMANEVAL["prompt"], answer, "f"), scope)
    assert scope["f"](4) == 8


@pytest.mark.parametrize("answer", ["def f(:", "\0", "(" * 10_000, "x" + "[0]" * 100_000])
def test_what_is_no_program_does_not_compile(answer):
    with pytest.raises(SyntaxError):
        composed("", answer + "\n?", "f")


def test_the_last_block_of_a_message_is_the_program():
    assert program_in("So:\n```python\nx = 1\n```\nor\n```\nx = 2\n```", "f") == "x = 2\n"
    assert program_in("x = 3", "f") == "x = 3"
    other = "def g(x):\n    return x\n"  # under another name
    assert program_in(f"```python\n{other}```\nSo:\n```\ny = g(1)\n```", "f") == other
    program = "def f(x):\n    return x\n"  # an example of its use is not the program
    assert program_in(f"```python\n{program}```\nSo:\n```\nprint(f(1))\n```", "f") == program
    assert program_in(f"```python\n{program}", "f") == program
    assert program_in(f"{program}```\n", "f") == f"{program}```\n"


PROGRAM = "def f(x):\n    return x\n"
BEHIND = (
    "```python\ndef test_f():\n    assert f(1) == 1\n```",
    "```java\nclass A { int f(int x) { return x; } }\n```",
    "```c++\nint f(int x) { return x; }\n```",
    "```\ndef helper(x):\n    return f(x)\n```",
    "```text\nf(1) is 1\n```",
    "```\n\n```",
)


@pytest.mark.parametrize(
    "opening", ["```", "```python", "```Python", "```py", '```python title="f"']
)
@pytest.mark.parametrize("behind", BEHIND)
def test_the_block_that_defines_the_function_is_the_program(opening, behind):
    assert program_in(f"{opening}\n{PROGRAM}```\nThen:\n{behind}", "f") == PROGRAM


@pytest.mark.parametrize("indent", ["   ", "\t", "    "])
def test_a_block_in_a_list_loses_its_indentation(indent):
    lines = "".join(f"{indent}{line}" for line in PROGRAM.splitlines(keepends=True))
    assert (
        program_in(f"1. Here:\n{indent}```python\n{lines}{indent}```", "f").strip()
        == PROGRAM.strip()
    )


def test_a_later_definition_replaces_an_earlier_one():
    first = "def f(x):\n    return 0\n"
    assert program_in(f"```\n{first}```\nBetter:\n```\n{PROGRAM}```", "f") == PROGRAM


@pytest.mark.parametrize(
    "program",
    [
        "async def f(x):\n    return x\n",
        "f = lambda x: x\n",
        "f: object = lambda x: x\n",
        "from math import sqrt as f\n",
        "from math import (\n    sin,  # unused\n    f,\n)\n",
        "import functools, f\n",
    ],
)
@pytest.mark.parametrize("behind", [*BEHIND, "```\nassert f(1) == 1\nok = f == f\n```"])
def test_a_function_may_be_assigned_or_imported(program, behind):
    assert program_in(f"```python\n{program}```\nThen:\n{behind}", "f") == program


@pytest.mark.parametrize("behind", ["from solution import f\n", "from math import f as g\n"])
def test_tests_that_import_the_function_are_no_program(behind):
    for program in (PROGRAM, "f = lambda x: x\n"):
        text = f"```python\n{program}```\n```python\n{behind}def test_f():\n    f(1)\n```"
        assert program_in(text, "f") == program


@pytest.mark.parametrize("mark", ["```", "~~~", "````"])
@pytest.mark.parametrize(
    "words",
    [
        "Like ``` in text.",
        "See:\n    ```\n    f(1)\n    ```\n    .",
        "```python\n    f(1)\n    ```",
    ],
)
def test_a_mark_in_a_docstring_does_not_end_the_block(mark, words):
    program = f'def f(x):\n    """{words}"""\n    return x\n'
    assert program_in(f"{mark}python\n{program}{mark}\nSo.", "f") == program
    assert program_in(f"{mark}python\n{program}", "f") == program
    assert program_in(program, "f") == program


@pytest.mark.parametrize("start", ["", "- ", "1.  "])
def test_a_block_ends_with_its_own_mark(start):
    for mark in ("```", "~~~"):
        indent = " " * len(start)
        text = f"{start}{mark}python\n{indent}def f(x): return x\n{indent}{mark}\nSo it is.\n"
        assert program_in(text, "f").strip() == "def f(x): return x"
    for between in ("```\nTests:\n", "\n"):
        text = f"```python\ndef f(x): return x{between}```python\nassert f(1) == 1\n```"
        assert program_in(text, "f").strip() == "def f(x): return x"


@pytest.mark.parametrize(
    "piece",
    [
        "a```\n",
        "~~~",
        "import (",
        "import (\n",
        "f = ",
        "f =\n",
        "\n f",
        "`",
        "```",
        "``` ",
        "```a",
        "```\n",
        "``` \n ",
        "a",
        "\n",
        " ",
    ],
)
def test_a_long_message_is_read_in_time_in_proportion(piece):
    started = time.perf_counter()
    program_in("```" + piece * 100_000, "f")
    assert time.perf_counter() - started < 5, "it takes a tenth of a second"


def test_made_tasks_of_two_splits_are_different_functions():
    made = {split: family().tasks(split, 60) for split in ("train", "dev", "heldout")}
    keys = {split: {task.extra["query"] for task in tasks} for split, tasks in made.items()}
    assert all(len(keys[split]) == len(made[split]) >= 40 for split in made)
    assert not keys["train"] & (keys["heldout"] | keys["dev"])
    assert made["heldout"] == family().tasks("heldout", 60)


def test_reference_programs_pass_their_tests():
    for task in family().tasks("train", 30):
        scope = {}
        exec(task.verifier.gold[0], scope)  # our own grammar's text
        for case in cases_of(unit_tests_of(task), unit_tests_of(task).hidden):
            exec(f"assert {case.text} == {case.expected!r}", scope)

"""Public sets of programming tasks: HumanEval and MBPP.

    HumanEval          {task_id, prompt, entry_point, canonical_solution, test}
    MBPP, InterCode    {task_id, query, gold, tests, test_setup_code}
    MBPP, original     {task_id, text, code, test_list, test_setup_code}

HumanEval (Chen et al. 2021, arXiv:2107.03374): the function `check` in `test` is called with the
function that the prompt begins, and has to return. Here each of its assertions is a separate test;
all of them pass exactly if `check` returns. Helper functions in the prompt take precedence over an
answer's functions of the same name.

MBPP (Austin et al. 2021, arXiv:2108.07732): every assertion must pass after the program and then
`test_setup_code` have run. Tests can use the modules that the gold program imports.
"""

from __future__ import annotations

import ast
import builtins
import doctest
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from espalier.environments.benchmarks import BenchmarkRow, benchmark_tasks, read_rows
from espalier.environments.family import make_task
from espalier.records import DataError, Task
from espalier_environments.code.inside.program import head_of
from espalier_environments.code.syntax import bounded_tree
from espalier_environments.code.unit_tests import UnitTests, grouped_tests, names_in, parsed

_Text = Annotated[str, StringConstraints(min_length=1)]
CANDIDATE = "candidate"
"""Name of the function in HumanEval's tests."""
_MAX_CHARACTERS = 100_000
_Source = Annotated[str, StringConstraints(max_length=_MAX_CHARACTERS)]


class _Row(BenchmarkRow):
    """A task of either set, with the field names of its file."""

    task_id: int | str
    # HumanEval
    prompt: _Source | None = None
    entry_point: str = ""
    canonical_solution: _Source = ""
    test: _Source = ""
    # MBPP
    query: _Text | None = None
    text: _Text | None = None
    gold: _Source | None = None
    code: _Source | None = None
    tests: tuple[_Source, ...] = Field(default=(), max_length=1000)
    test_list: tuple[_Source, ...] = Field(default=(), max_length=1000)
    test_setup_code: _Source = ""

    @model_validator(mode="after")
    def _is_of_a_known_form(self) -> _Row:
        if self.prompt is not None:
            if not (self.entry_point.isidentifier() and self.test):
                raise ValueError("a row with a prompt needs entry_point and test, as HumanEval's")
        elif not (self.question and self.program and (self.tests or self.test_list)):
            raise ValueError(
                "is not a row of HumanEval (prompt, entry_point, test), nor of MBPP (query, gold "
                "and tests, or text, code and test_list)"
            )
        return self

    @property
    def question(self) -> str:
        """The question of an MBPP row."""
        return (self.query or self.text or "").strip()

    @property
    def program(self) -> str:
        """The gold program of an MBPP row."""
        return (self.gold or self.code or "").replace("\r\n", "\n")


def read_programming_tasks(path: Path, *, shown_tests: int, family: str = "code") -> list[Task]:
    """Return the tasks of a HumanEval or MBPP file.

    Args:
        path: a file of JSON lines or a JSON array, compressed or not.
        shown_tests: number of tests of an MBPP row that the prompt shows.
        family: name of the tasks' family.

    Raises:
        DataError: a row is malformed or its tests call nothing; the message names it.
    """
    return benchmark_tasks(
        path,
        [
            _humaneval(path, where, row, row.prompt, family)
            if row.prompt is not None
            else _mbpp(path, where, row, shown_tests, family)
            for where, row in read_rows(path, _Row)
        ],
    )


def _humaneval(path: Path, where: str, row: _Row, prompt: str, family: str) -> Task:
    body = parsed(f"{where}: test", row.test).body
    checks = [part for part in body if isinstance(part, ast.FunctionDef) and part.name == "check"]
    if len(checks) != 1 or [arg.arg for arg in checks[0].args.args] != [CANDIDATE]:
        raise DataError(f"{where}: its test defines no function check(candidate)")
    functions = {CANDIDATE: row.entry_point, row.entry_point: row.entry_point}
    others = [part for part in body if part is not checks[0]]
    tests = UnitTests(
        functions=functions,
        hidden=tuple(grouped_tests(checks[0].body, tuple(functions))),
        visible=tuple(_examples(prompt, row.entry_point)),
        prompt=prompt,
        preamble="\n".join(_helpers(prompt, row.entry_point, others)),
    )
    question = f"Complete the function {row.entry_point} of this program:\n\n{prompt}"
    return _task(path, where, row, tests, question, row.canonical_solution, "humaneval", family)


def _helpers(prompt: str, entry_point: str, others: list[ast.stmt]) -> Iterator[str]:
    """Yield sources that tests need besides the function: the prompt's and the test's helpers.

    A prompt without helpers, and a test with nothing but METADATA, need none.
    """
    head = head_of(prompt, entry_point)
    try:
        begun = bounded_tree(head).body
    except SyntaxError:
        begun = []
    if any(isinstance(part, ast.FunctionDef | ast.ClassDef) for part in begun):
        yield head
    for part in others:
        if not (isinstance(part, ast.Assign) and names_in(part) == {"METADATA"}):
            yield ast.unparse(part)


def _examples(prompt: str, entry_point: str) -> Iterator[str]:
    """Yield the examples of a docstring that show what a call returns, as assertions."""
    try:
        functions = [
            part for part in bounded_tree(prompt).body if isinstance(part, ast.FunctionDef)
        ]
        texts = [ast.get_docstring(one) or "" for one in functions if one.name == entry_point]
        found = [example for text in texts for example in _DOCTESTS.get_examples(text)]
    except (SyntaxError, ValueError):  # examples that doctest's parser refuses
        return
    for example in found:
        statement = f"assert {example.source.strip()} == {example.want.strip()}"
        try:
            body = bounded_tree(statement).body
            ast.literal_eval(example.want.strip())
        except (SyntaxError, ValueError, TypeError):
            continue
        match body:
            case [ast.Assert(test=ast.Compare(left=ast.Call(func=ast.Name(id=name))))]:
                if name == entry_point:
                    yield statement
            case _:
                continue


_DOCTESTS = doctest.DocTestParser()


def _mbpp(path: Path, where: str, row: _Row, shown_tests: int, family: str) -> Task:
    gold = parsed(f"{where}: the gold program", row.program)
    statements = row.tests or row.test_list
    trees = [parsed(f"{where}: test {number}", text) for number, text in enumerate(statements, 1)]
    setup = parsed(f"{where}: test_setup_code", row.test_setup_code)
    used = set[str]().union(*map(names_in, (*trees, setup)))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = [part.name for part in gold.body if isinstance(part, kinds)]
    called = [name for name in defined if name in used]
    if not called:
        raise DataError(f"{where}: its tests call no function that its gold program defines")
    preamble: list[str] = []
    if unknown := used - set(called) - set(dir(builtins)):
        # official tests run in the program's namespace, and find the modules that it imports
        for part in gold.body:
            if isinstance(part, ast.Import | ast.ImportFrom):
                names = {(alias.asname or alias.name).partition(".")[0] for alias in part.names}
                if names & unknown:
                    preamble.append(ast.unparse(part))
    if setup.body:
        preamble.append(row.test_setup_code)
    first = [name for name in called if f"{name}(" in statements[0]][:1]
    tests = UnitTests(
        functions={name: name for name in (*first, *called)},
        hidden=tuple(text.strip() for text in statements),
        visible=tuple(text.strip() for text in statements[:shown_tests]),
        preamble="\n".join(preamble),
        classes=tuple(
            part.name
            for part in gold.body
            if isinstance(part, ast.ClassDef) and part.name in called
        ),
    )
    question = row.question
    if tests.visible:
        question += " Your program must pass these tests:\n\n" + "\n".join(tests.visible)
    return _task(path, where, row, tests, question, row.program, "mbpp", family)


def _task(  # noqa: PLR0913 (the parts of a task)
    path: Path,
    where: str,
    row: _Row,
    tests: UnitTests,
    question: str,
    gold: str,
    benchmark: str,
    family: str,
) -> Task:
    if not tests.hidden:
        raise DataError(f"{where}: its tests never call {tests.entry_point}")
    return make_task(
        family,
        question,
        gold=(gold or "pass",),
        split="heldout",
        source=path.name,
        key=f"{benchmark}/{row.task_id}",
        kind="unit_tests",
        arguments=tests.arguments(),
        metadata={"extra": {"kind": benchmark, "benchmark_id": str(row.task_id)}},
    )

"""The tests of a task: statements that assert something of what its functions return.

    assert f([1, 2]) == 5                            a case: a call and a value, both literals
    assert abs(candidate(1.33) - 0.33) < 1e-6        a check: any other statement

Where all tests are cases, the program's calls are run and their values compared in this process,
which so runs nothing of anybody. Checks run in a process of their own inside the sandbox.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from pydantic import BaseModel, JsonValue, ValidationError

from espalier.environments.code.inside.values import encode
from espalier.environments.code.syntax import bounded_tree
from espalier.records import DataError, Task


class UnitTests(BaseModel, frozen=True, extra="forbid"):
    """What `Task.arguments` of a programming task hold."""

    functions: dict[str, str]
    """Name in the tests -> name in the program: HumanEval's tests call `candidate`. The first is
    what the program has to define."""
    hidden: tuple[str, ...]
    """Statements that the program is judged by."""
    visible: tuple[str, ...] = ()
    """Statements that the policy may run beforehand."""
    prompt: str = ""
    """Beginning of the program, which an answer may complete; empty where there is none."""
    preamble: str = ""
    """Source that stands before the tests: imports, helper functions, objects."""

    @property
    def entry_point(self) -> str:
        """What the program has to define."""
        return next(iter(self.functions.values()))

    def arguments(self) -> dict[str, JsonValue]:
        """As JSON, for `Task.arguments`."""
        return self.model_dump(mode="json")


def unit_tests_of(task: Task) -> UnitTests:
    """The tests of a task.

    Raises:
        DataError: its arguments are no such tests.
    """
    try:
        return UnitTests.model_validate(task.arguments)
    except ValidationError as error:
        raise DataError(f"task {task.task_id}: has no unit tests ({error})") from error


class Case(NamedTuple):
    """A call, and the value that it must return."""

    text: str
    """The call, as it is written."""
    function: str
    arguments: Any
    """A list of them, on the wire."""
    expected: Any


def cases_of(tests: UnitTests, statements: Sequence[str]) -> list[Case] | None:
    """The statements as cases; None where one of them is something else."""
    if tests.preamble:
        return None
    found = [_case_of(statement, tests.functions) for statement in statements]
    cases = [case for case in found if case is not None]
    return cases if len(cases) == len(found) else None


def _case_of(statement: str, functions: dict[str, str]) -> Case | None:
    body = ast.parse(statement).body
    match body:
        case [
            ast.Assert(
                test=ast.Compare(
                    left=ast.Call(func=ast.Name(id=name), args=args, keywords=[]) as call,
                    ops=[ast.Eq()],
                    comparators=[right],
                )
            )
        ] if name in functions:
            try:
                arguments = [ast.literal_eval(arg) for arg in args]
                expected = ast.literal_eval(right)
                wire = encode(arguments, _nothing_is_held)
            except (ValueError, TypeError):
                return None
            return Case(ast.unparse(call), functions[name], wire, expected)
        case _:
            return None


def _nothing_is_held(value: object) -> NoReturn:
    raise TypeError(f"a literal is no {type(value).__name__}")


def parsed(where: str, source: str) -> ast.Module:
    """The syntax tree of a file's source.

    Raises:
        DataError: it is no Python, or too large or too deep.
    """
    try:
        return bounded_tree(source)
    except SyntaxError as error:
        raise DataError(f"{where}: not Python ({error})") from error


def grouped_tests(statements: Sequence[ast.stmt], functions: Sequence[str]) -> list[str]:
    """The source of each test, with the statements before it that call no function of the program.

    What follows the last test belongs to it: all of them pass exactly where the whole passes.
    """
    tests: list[list[str]] = []
    waiting: list[str] = []
    for statement in statements:
        waiting.append(ast.unparse(statement))
        if names_in(statement) & set(functions):
            tests.append(waiting)
            waiting = []
    if tests:
        tests[-1] += waiting
    return ["\n".join(lines) for lines in tests]


def names_in(tree: ast.AST) -> set[str]:
    """Every name that a piece of source reads or writes."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

"""The tests of a task: statements that assert something about what its functions return.

    assert f([1, 2]) == 5                            a case: a call and a value, both literals
    assert abs(candidate(1.33) - 0.33) < 1e-6        a check: any other statement

If all tests are cases, the program's calls run in the sandbox and their values are compared in this
process, which runs no foreign code. Checks run in a separate process inside the sandbox.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from pydantic import BaseModel, JsonValue, ValidationError

from espalier.records import DataError, Task
from espalier_environments.code.inside.values import encode
from espalier_environments.code.syntax import bounded_tree


class UnitTests(BaseModel, frozen=True, extra="forbid"):
    """The content of `Task.arguments` of a programming task."""

    functions: dict[str, str]
    """Name in the tests -> name in the program: HumanEval's tests call `candidate`. The first one
    is the function that the program has to define."""
    hidden: tuple[str, ...]
    """Statements that the program is judged by."""
    visible: tuple[str, ...] = ()
    """Statements that the policy may run beforehand."""
    prompt: str = ""
    """The beginning of the program, which an answer may complete; may be empty."""
    preamble: str = ""
    """Source that is run before the tests: imports, helper functions, objects."""
    classes: tuple[str, ...] | None = None
    """Names in the tests that are of classes; unset, those in CapWords. The operators of an object
    that the tests construct of one may see what the tests compare with."""

    @property
    def entry_point(self) -> str:
        """Name of the function that the program has to define."""
        return next(iter(self.functions.values()))

    @property
    def tested_classes(self) -> tuple[str, ...]:
        """Names in the tests that are of classes."""
        if self.classes is not None:
            return self.classes
        return tuple(name for name in self.functions if name[:1].isupper() and "_" not in name)

    def arguments(self) -> dict[str, JsonValue]:
        """Return the tests as JSON, for `Task.arguments`."""
        unset = {"classes"} if self.classes is None else set[str]()
        return self.model_dump(mode="json", exclude=unset)


def unit_tests_of(task: Task) -> UnitTests:
    """Return the tests of a task.

    Raises:
        DataError: its arguments are not valid tests.
    """
    try:
        return UnitTests.model_validate(task.arguments)
    except ValidationError as error:
        raise DataError(f"task {task.task_id}: has no unit tests ({error})") from error


class Case(NamedTuple):
    """A call, and the value that it must return."""

    text: str
    """The source of the call."""
    function: str
    arguments: Any
    """The list of arguments in wire form."""
    expected: Any


def cases_of(tests: UnitTests, statements: Sequence[str]) -> list[Case] | None:
    """Return the statements as cases; None if one of them is not a case."""
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
    raise TypeError(f"a literal cannot be of type {type(value).__name__}")


def parsed(where: str, source: str) -> ast.Module:
    """Return the syntax tree of a source in a file.

    Raises:
        DataError: it is not Python, or too large or too deep.
    """
    try:
        return bounded_tree(source)
    except SyntaxError as error:
        raise DataError(f"{where}: not Python ({error})") from error


def grouped_tests(statements: Sequence[ast.stmt], functions: Sequence[str]) -> list[str]:
    """Return the source of each test, with the statements before it that call no tested function.

    Statements after the last test belong to it: all tests pass exactly if the whole source passes.
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
    """Return every name that a piece of source reads or writes."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

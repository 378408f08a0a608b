"""Runs the judged program, and answers calls of its functions.

The program may overwrite everything in this process. That only harms the program itself: expected
values are not in this process, and its answers are compared elsewhere.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from espalier_environments.code.inside.values import decode, encode

T = TypeVar("T")


def composed(prompt: str, answer: str, name: str) -> types.CodeType:
    """Compile the program that an answer gives; texts are composed as in `completed`.

    Raises:
        SyntaxError: no way of composing it compiles.
    """
    return completed(prompt, answer, name, _compiled, _parsed)


def completed(
    prompt: str,
    answer: str,
    name: str,
    read: Callable[[str], T],
    parse: Callable[[str], ast.Module],
) -> T:
    """Return `read` of the prompt completed by the answer, or of the answer after its head.

    Args:
        prompt: beginning of the program; empty if the answer is all of it.
        answer: what the policy wrote.
        name: function that the prompt begins and the answer may redefine.
        read: takes the text of a program; raises SyntaxError if it is not one.
        parse: returns the tree of the answer alone, or raises SyntaxError.

    Raises:
        SyntaxError: no way of composing the text is a program.
    """
    if not prompt:
        return read(answer)
    if _defines(answer, name, parse):
        return read(f"{head_of(prompt, name)}\n{answer}")
    try:
        return read(prompt + answer)
    except SyntaxError:
        # the indentation of the answer's first line may have been stripped
        return read(f"{prompt}    {answer.lstrip()}")


def head_of(prompt: str, name: str) -> str:
    """Return the prompt before the definition of a function: imports and helper functions."""
    return f"\n{prompt}"[1 : max(1, f"\n{prompt}".rfind(f"\ndef {name}(") + 1)]


def _compiled(text: str) -> types.CodeType:
    try:
        return compile(text, "program.py", "exec", dont_inherit=True)
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise SyntaxError(str(error)) from error


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error)) from error


def _defines(text: str, name: str, parse: Callable[[str], ast.Module]) -> bool:
    try:
        body = parse(text).body
    except SyntaxError:
        return False
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(part, kinds) and part.name == name for part in body)


class _Caught:
    """A context that ends the block at any exception of the program, and keeps it.

    This includes SystemExit and KeyboardInterrupt: a program must not end its runner by raising.
    """

    error: BaseException | None = None

    def __enter__(self) -> _Caught:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        self.error = error
        return True

    @property
    def told(self) -> list[str]:
        """The error in wire form."""
        message = ""
        with contextlib.suppress(BaseException):  # str() of the program's own class may raise
            message = str(self.error)[:200]
        return ["e", type(self.error).__name__, message]


class Program:
    """The names of a running program, and the objects that the tests hold by number."""

    def __init__(self) -> None:
        self._module = types.ModuleType("program")
        sys.modules["program"] = self._module
        self._objects: list[Any] = []

    def run(self, code: types.CodeType) -> list[Any]:
        """Execute the program's text; return ["v", None], or ["e", name, message]."""
        with _Caught() as caught:
            exec(code, self._module.__dict__)
        return ["v", None] if caught.error is None else caught.told

    def answer(self, asked: Sequence[Any]) -> list[Any]:
        """Return the result of an operation: ["v", value] or ["e", name, message]."""
        found: list[Any] = []
        with _Caught() as caught:
            found = ["v", encode(self._result(*asked), self._hold)]
        return found if caught.error is None else caught.told

    def _hold(self, value: Any) -> int:  # noqa: ANN401 (any object)
        self._objects.append(value)
        return len(self._objects) - 1

    def _held(self, number: int, _name: object) -> Any:  # noqa: ANN401 (any object)
        return self._objects[number]

    def _result(self, operation: str, *parts: Any) -> Any:  # noqa: ANN401 (any object)
        if operation == "name":
            return getattr(self._module, parts[0])
        of, *arguments = (decode(part, self._held) for part in parts)
        match operation:
            case "call":
                positional, named = arguments
                return of(*positional, **named)
            case "get":
                return getattr(of, arguments[0])
            case "set":
                return setattr(of, *arguments)
            case "item":
                return of[arguments[0]]
            case "iterate":
                return [value for _, value in zip(range(_MOST_VALUES), of, strict=False)]
            case _:
                return _MEASURES[operation](of)


_MOST_VALUES = 100_000
_MEASURES = {"truth": bool, "length": len, "text": str, "show": repr}


class Silence:
    """Empties standard input and drops all output from now on, however it is written.

    Only `write` still reaches the former standard output.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._output = os.dup(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)

    def write(self, value: object) -> None:
        """Write one line of JSON to the former standard output."""
        write_line(self._output, value)


def write_line(descriptor: int, value: object) -> None:
    """Write one line of JSON."""
    line = json.dumps(value).encode() + b"\n"
    while line:
        line = line[os.write(descriptor, line) :]


def run_cases(prompt: str, answer: str, name: str) -> NoReturn:
    """Call the program for each case on standard input, and write a line of output for each.

    The first line says whether it compiles, the second whether it runs.
    """
    calls = json.loads(sys.stdin.buffer.read())
    output = Silence()
    try:
        code = composed(prompt, answer, name)
    except SyntaxError as error:
        output.write(["e", "SyntaxError", str(error)[:200]])
        os._exit(0)
    output.write(["v", None])
    program = Program()
    began = program.run(code)
    output.write(began)
    for function, arguments in calls if began[0] == "v" else ():
        found = program.answer(["name", function])
        if found[0] == "v":
            found = program.answer(["call", found[1], arguments, ["d"]])
        output.write(found)
    os._exit(0)


def serve(prompt: str, answer: str, name: str, folder: str) -> NoReturn:
    """Answer the operations that come through the pipes of a folder, until they are closed.

    The first two replies are the same as the first two lines of `run_cases`.
    """
    Silence()
    asking, answering = open_pipes(folder, is_program=True)
    lines = os.fdopen(asking, "rb")
    lines.readline()  # the program runs only once the tests' process is ready
    try:
        code = composed(prompt, answer, name)
    except SyntaxError as error:
        write_line(answering, ["e", "SyntaxError", str(error)[:200]])
        os._exit(0)
    write_line(answering, ["v", None])
    program = Program()
    write_line(answering, program.run(code))
    for line in lines:
        write_line(answering, program.answer(json.loads(line)))
    os._exit(0)


def open_pipes(folder: str, *, is_program: bool) -> tuple[int, int]:
    """Return the pipes between a program and its tests: one to read from, one to write to."""
    asking, answering = os.path.join(folder, "asking"), os.path.join(folder, "answering")
    os.makedirs(folder, exist_ok=True)
    for path in (asking, answering):
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path)
    if is_program:  # both sides open in the same order, as opening a pipe waits for the other side
        return os.open(asking, os.O_RDONLY), os.open(answering, os.O_WRONLY)
    to_program = os.open(asking, os.O_WRONLY)
    return os.open(answering, os.O_RDONLY), to_program

"""Runs the judged program, and answers calls of its functions.

The program may overwrite everything in this process. That only harms the program itself: expected
values are not in this process, and its answers are compared elsewhere.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import operator
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, NoReturn, TypeVar, cast

from espalier_environments.code.inside.values import (
    OWN_MODULE,
    REFERENCE,
    decode,
    encode,
    encode_plain,
    is_derived,
)

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
    try:
        statements = parse(answer).body
    except SyntaxError:
        statements = []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if any(isinstance(part, kinds) and part.name == name for part in statements):
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


class Caught:
    """A context that ends the block at any exception of the program, and keeps it.

    This includes SystemExit and KeyboardInterrupt: a program must not end its runner by raising.
    """

    error: BaseException | None = None

    def __enter__(self) -> Caught:
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
    """The names of a running program, and the objects that the tests hold by number.

    References, after their first word:

        "i", 3, 1      an object of the program, and its class; if that is derived from a plain one,
                       the plain value is the last part
        "k", 1         a class of the program
        "h", 0         a function of the tests

    Args:
        asking, answering: pipes from and to the tests; None if they only call functions.
    """

    def __init__(self, asking: BinaryIO | None = None, answering: int = -1) -> None:
        self._asking, self._answering = asking, answering
        self._module = types.ModuleType(OWN_MODULE)
        sys.modules[OWN_MODULE] = self._module
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        """Identity of an object -> its number; objects are kept, so no identity comes again."""
        self._handed: dict[int, Callable[..., Any]] = {}

    def run(self, code: types.CodeType) -> list[Any]:
        """Execute the program's text; return ["v", None], or ["e", name, message]."""
        with Caught() as caught:
            exec(code, self._module.__dict__)
        return ["v", None] if caught.error is None else caught.told

    def answer(self, asked: Sequence[Any]) -> list[Any]:
        """Return the result of an operation.

        It is ["v", value], or ["e", name, message, class, exception, its arguments].
        """
        found: list[Any] = []
        with Caught() as caught:
            found = ["v", self._result(*asked)]
        if caught.error is None:
            return found
        error, told = caught.error, caught.told
        with Caught():
            kind, arguments = encode(type(error), self._refer), encode(error.args, self._refer)
            told += [kind, self._refer(error), arguments]
        return told

    def converse(self) -> Any:  # noqa: ANN401 (any object)
        """Answer operations until the tests return from a function of theirs; return its result.

        The process ends where they end.
        """
        assert self._asking is not None, "the tests call functions only"
        while line := self._asking.readline():
            match json.loads(line):
                case ["r", wire]:
                    return decode(wire, self._held)
                case ["x", wire, arguments]:
                    raise _raised(decode(wire, self._held), decode(arguments, self._held))
                case asked:
                    write_line(self._answering, self.answer(asked))
        os._exit(0)

    def _refer(self, value: Any) -> list[Any]:  # noqa: ANN401 (any object)
        for number, function in self._handed.items():
            if function is value:
                return [REFERENCE, "h", number]
        if isinstance(value, type):
            return [REFERENCE, "k", self._number(value)]
        reference = [REFERENCE, "i", self._number(value), self._number(type(value))]
        return [*reference, encode_plain(value, self._refer)] if is_derived(value) else reference

    def _number(self, value: Any) -> int:  # noqa: ANN401 (any object)
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def _held(self, reference: Sequence[Any]) -> Any:  # noqa: ANN401 (any object)
        kind, number, *_ = reference
        if kind != "h":
            return self._objects[number]

        def handed(*positional: Any, **named: Any) -> Any:  # noqa: ANN401 (any values)
            given = [encode(part, self._refer) for part in (positional, named)]
            write_line(self._answering, ["c", number, *given])
            return self.converse()

        return self._handed.setdefault(number, handed)

    def _result(self, operation: str, *parts: Any) -> Any:  # noqa: ANN401 (the wire form of any value)
        if operation == "name":
            return encode(getattr(self._module, parts[0]), self._refer)
        arguments = [decode(part, self._held) for part in parts]
        if operation == "plain":
            return encode_plain(arguments[0], self._refer)
        return encode(_operated(operation, *arguments), self._refer)


def _operated(operation: str, of: Any, *arguments: Any) -> Any:  # noqa: ANN401 (any objects)
    match operation:
        case "call":
            positional, named = arguments
            return of(*positional, **named)
        case "get":
            return getattr(of, *arguments)
        case "set":
            return setattr(of, *arguments)
        case "delete":
            return delattr(of, *arguments)
        case "iterate":
            values = iter(of)
            if values is of:
                return None
            return [value for _, value in zip(range(_MOST_VALUES), values, strict=False)]
        case "enter":
            return _class_of(of).__enter__(of)
        case "exit":
            raised, given = arguments
            error = _raised(raised, given) if raised else None
            return bool(_class_of(of).__exit__(of, type(error) if error else None, error, None))
        case "class":
            return [of.__name__, of.__module__, list(of.__bases__)]
        case _:
            return (getattr(operator, operation, None) or getattr(builtins, operation))(
                of, *arguments
            )


def _class_of(value: Any) -> Any:  # noqa: ANN401 (any object, and its class)
    return cast("Any", type(value))


def _raised(kind: Any, arguments: Sequence[Any]) -> BaseException:  # noqa: ANN401 (a class or an exception)
    """Return an exception that the tests raised: one of the program, or of a built-in class."""
    return kind(*arguments) if isinstance(kind, type) else kind


_MOST_VALUES = 100_000


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
        output.write(found[:3])
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
    program = Program(lines, answering)
    write_line(answering, program.run(code))
    program.converse()
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

"""Runs tests that call a program in another process, and compares the results here.

The program's functions are remote objects: a call sends its arguments and gets back plain values,
which are rebuilt here. A program can therefore not return an object that equals everything, and its
process holds nothing of the tests: it sees the arguments of each call at the time of the call.
What may be done with its objects is in `remotes`.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import json
import os
import select
import sys
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

from espalier_environments.code.inside.program import Caught, Silence, open_pipes
from espalier_environments.code.inside.remotes import (
    UNCHANGING,
    Mirror,
    Remote,
    State,
    is_remote,
    may_be_handed,
    mirror_of,
    state_of,
    tested,
    with_state,
)
from espalier_environments.code.inside.values import REFERENCE, Unreadable, decode, encode

_MOST_LINE_BYTES = 4 * 2**20
_MOST_MESSAGE_BYTES = 24 * 2**10
"""Most bytes of all messages together, in JSON: the output of a program is cut at 64 KiB, and a
program under test chooses what its exceptions say. Messages beyond it are left out."""
_PR_SET_DUMPABLE = 4


class Gone(BaseException):
    """The program ended, takes too long, or sends unreadable data.

    This is not an `Exception`, so that a test that expects an exception does not catch it.
    """


class Pipe:
    """Operations on the program, one at a time."""

    def __init__(self, to_program: int, from_program: int, deadline_s: float) -> None:
        self._to, self._from, self._deadline_s = to_program, from_program, deadline_s
        self._unread = b""
        self._over = ""
        """Why no further operation is possible; empty while they are."""
        self.raised: BaseException | None = None
        """The last exception of the program, in the form in which it was raised here."""
        self.raised_for_test = False
        """Whether it was an assertion of the tests first, in a function that the program called."""
        self.raising_lines: frozenset[int] = frozenset()
        """Lines of the running test that have a `raise`."""
        self.withheld: AssertionError | None = None
        """An assertion of the running test that failed in a call by the program, and that the
        program kept from the test."""
        self._handed: list[Any] = []
        """Functions of the tests that the program may call, by number."""
        self._mirrors: dict[int, Any] = {}
        self._remotes: dict[tuple[int, int], Any] = {}
        """Number and trust -> the object, the same one each time."""

    def ask(self, operation: str, *parts: Any) -> Any:  # noqa: ANN401 (any value)
        """Return the result of an operation.

        Raises:
            Gone: the program does not answer.
            BaseException: the program's exception, of its built-in class or of a mirror.
        """
        return self._converse(operation, *[encode(part, self._refer) for part in parts])

    def named(self, name: str) -> Any:  # noqa: ANN401 (any value)
        """Return what a name of the program stands for."""
        return self._converse("name", name)

    def _converse(self, *asked: Any) -> Any:  # noqa: ANN401 (any value)
        self.send(json.dumps(asked).encode())
        failed: AssertionError | None = None
        try:
            while True:
                match self.receive():
                    case ["v", value]:
                        self.withheld = self.withheld or failed
                        return decode(value, self._held)
                    case ["e", str(name), str(message), *more]:
                        self.raised = self._exception(name, message, more)
                        break
                    case ["c", int(number), positional, named]:
                        failed = self._call_back(number, positional, named) or failed
                    case _:
                        self._end()
        except (Unreadable, RecursionError):
            self._end()
        self.raised_for_test = failed is not None and isinstance(self.raised, AssertionError)
        if not self.raised_for_test:
            self.withheld = self.withheld or failed
        raise self.raised

    def _call_back(self, number: int, positional: Any, named: Any) -> AssertionError | None:  # noqa: ANN401
        """Call a function of the tests that the program was handed, and send what it returns.

        Returns:
            The assertion of the tests that failed in it, if it tells of the program.
        """
        function = self._held(["h", number])
        arguments, keywords = decode(positional, self._held), decode(named, self._held)
        sent: list[Any] = []
        with Caught() as caught:
            sent = ["r", encode(function(*arguments, **keywords), self._refer)]
        if caught.error is not None:
            if not isinstance(caught.error, Exception):
                raise caught.error
            is_own = is_remote(caught.error)
            kind = caught.error if is_own else type(caught.error)
            with Caught() as unsent:
                sent = ["x", *[encode(part, self._refer) for part in (kind, caught.error.args)]]
            if unsent.error is not None:
                sent = ["x", ["y", "RuntimeError"], ["t", str(caught.error)]]
        self.send(json.dumps(sent).encode())
        error = caught.error
        if not isinstance(error, AssertionError) or _reads_nothing(function):
            return None
        return error if error is not self.raised or self.raised_for_test else None

    def send(self, line: bytes) -> None:
        """Send a line."""
        left = line + b"\n"
        try:
            while left:
                self._wait(self._to, select.POLLOUT)
                left = left[os.write(self._to, left[: select.PIPE_BUF]) :]
        except OSError:
            self._end()

    def receive(self) -> Any:  # noqa: ANN401 (whatever the program sends)
        """Return the next line that the program sends, as JSON."""
        while b"\n" not in self._unread:
            if len(self._unread) > _MOST_LINE_BYTES:
                self._end()
            self._wait(self._from, select.POLLIN)
            more = os.read(self._from, 65536)
            if not more:
                self._end()
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            self._end()

    def _wait(self, descriptor: int, event: int) -> None:
        if self._over:
            raise Gone(self._over)
        poll = select.poll()
        poll.register(descriptor, event)
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0 or not poll.poll(1000 * left_s):
            self._end("the program takes too long")

    def _end(self, why: str = "the program is gone") -> NoReturn:
        self._over = why
        raise Gone(why)

    # ------------------------------------------------------------------------ references

    def _refer(self, value: Any) -> list[Any]:  # noqa: ANN401 (any object)
        if is_remote(value):
            return [REFERENCE, "k" if isinstance(value, Mirror) else "i", state_of(value).number]
        if not may_be_handed(value):
            raise TypeError(f"cannot be handed to the program: {type(value).__name__}")
        for number, handed in enumerate(self._handed):
            if handed is value:
                return [REFERENCE, "h", number]
        self._handed.append(value)
        return [REFERENCE, "h", len(self._handed) - 1]

    def _held(self, reference: Sequence[Any]) -> Any:  # noqa: ANN401 (any object)
        match reference:
            case ["h", int(number)] if 0 <= number < len(self._handed):
                return self._handed[number]
            case ["k", int(number)]:
                return self._mirror(number)
            case ["i", int(number), int(kind), *plain]:
                value = decode(plain[0], self._held) if plain else None
                return self.remote(number, self._mirror(kind), plain=value)
            case _:
                raise Unreadable("no such reference")

    def remote(self, number: int, mirror: Any, *, plain: Any = None, trust: int = 0) -> Any:  # noqa: ANN401
        """Return the object of a number: the same one whenever it comes with that trust.

        Args:
            number: the object's.
            mirror: its class.
            plain: its plain value, if its class is derived from a plain one.
            trust: how far it is trusted with values of the tests.
        """
        if (number, trust) not in self._remotes:
            if not issubclass(mirror, Remote):
                raise Unreadable("an object of no class")
            new: Any = mirror.__new__
            if trust:
                plain = state_of(self._remotes[number, 0]).plain
            base: Any = next((one for one in UNCHANGING if issubclass(mirror, one)), None)
            if base is not None and type(plain) is not base:
                raise Unreadable(f"no {base.__name__}")
            made: Any = base.__new__(mirror, plain) if base else new(mirror)
            self._remotes[number, trust] = with_state(made, State(self, number, trust, plain))
        return self._remotes[number, trust]

    def _mirror(self, number: int) -> Any:  # noqa: ANN401 (a class)
        """Return the class here for one of the program."""
        if number not in self._mirrors:
            told: Any = self._converse("class", [REFERENCE, "k", number])
            match told:
                case [str(name), str(module), bases] if _are_classes(bases):
                    known: Any = getattr(sys.modules.get(module), name, None)
                    is_library = module.partition(".")[0] in sys.stdlib_module_names
                    if not is_library or not _is_exception(known):
                        known = mirror_of(name, bases, State(self, number))
                    self._mirrors[number] = known
                case _:
                    raise Unreadable("no class")
        return self._mirrors[number]

    def _exception(self, name: str, message: str, more: Sequence[Any]) -> BaseException:
        """Return an exception as the program raised it: of a class known here, or of a mirror."""
        found: Any
        given: Any
        match more:
            case [kind, [_, "i", int(number), *_], arguments]:
                found = decode(kind, self._held)
                given = decode(arguments, self._held)
            case _:
                found, number, given = getattr(builtins, name, None), 0, (message,)
        if not _is_exception(found) or not isinstance(given, tuple):
            return RuntimeError(f"{name}: {message}")
        if isinstance(found, Mirror):
            error = self.remote(number, found)
            object.__setattr__(error, "args", given)
            return error
        try:
            return found(*given)
        except TypeError:  # its constructor wants other arguments than it keeps
            return found.__new__(found, *given)

    def may_leave(self, error: BaseException, trace: types.TracebackType | None) -> bool:
        """Return whether a block may end by an error that the program calls harmless.

        Only a `raise` of the test itself: else a program could fail in the block, or let an
        assertion fail there, and the test would end well.
        """
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is None or isinstance(error, AssertionError) or error is self.raised:
            return False
        code = trace.tb_frame.f_code
        return code.co_filename == _TESTS_FILE and trace.tb_lineno in self.raising_lines


_TESTS_FILE = "<tests>"


def _reads_nothing(function: Any) -> bool:  # noqa: ANN401 (a function of the tests)
    """Return whether a function has no parameter and reads no name but built-in ones.

    Its assertion fails whatever the program does: it is an example for a program that runs tests.
    """
    code: types.CodeType | None = getattr(function, "__code__", None)
    if code is None:
        return False
    own = int(isinstance(function, types.MethodType))  # its `self` says nothing without a name
    takes = code.co_argcount > own or code.co_kwonlyargcount or code.co_flags & _MORE_ARGUMENTS
    inner = any(isinstance(one, types.CodeType) for one in code.co_consts)
    if takes or inner or code.co_freevars:
        return False
    known = function.__globals__
    return all(hasattr(builtins, name) and name not in known for name in code.co_names)


_MORE_ARGUMENTS = 0x04 | 0x08
"""Flags of code with `*arguments` or `**arguments`."""


def _is_exception(kind: Any) -> bool:  # noqa: ANN401 (any value)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _are_classes(bases: Any) -> bool:  # noqa: ANN401 (any value)
    return isinstance(bases, list) and all(
        isinstance(one, type) for one in cast("list[Any]", bases)
    )


def run_checks(
    preamble: str,
    names: Mapping[str, str],
    classes: Sequence[str],
    tests: Sequence[str],
    folder: str,
    timeout_s: float,
) -> NoReturn:
    """Write [whether it compiles, [[verdict, message], ...]] to standard output.

    Args:
        preamble: source that is run before the tests.
        names: name in the tests -> name in the program.
        classes: names in the tests that are of classes.
        tests: source of each test, which passes if it runs to its end.
        folder: folder of the pipes.
        timeout_s: time limit of all tests together.
    """
    # the program could write a module into the working directory, which a test's import would run
    sys.path[:] = [path for path in sys.path if path not in {"", os.getcwd()}]
    output = Silence()
    ctypes.CDLL(None).prctl(
        _PR_SET_DUMPABLE, 0, 0, 0, 0
    )  # other processes of this user cannot read our memory
    from_program, to_program = open_pipes(folder, is_program=False)
    program = Pipe(to_program, from_program, time.monotonic() + timeout_s)
    compiled, fault = False, "it does not run"
    try:
        program.send(b"begin")
        compiled = _is_well(program.receive())
        began = program.receive() if compiled else None
        if _is_well(began):
            verdicts = _Tests(program, names, classes).verdicts(preamble, tests)
            output.write([True, _shortened(verdicts)])
            os._exit(0)
        match began:
            case ["e", str(name), str(message)]:
                fault = f"{name}: {message}"[:200]
            case _:
                pass
    except Gone as gone:
        fault = str(gone)
    output.write([compiled, _shortened([["error", fault] for _ in tests])])
    os._exit(0)


def _shortened(verdicts: Sequence[list[str]]) -> list[list[str]]:
    """Return verdicts whose messages together have at most `_MOST_MESSAGE_BYTES`."""
    shortened: list[list[str]] = []
    left = _MOST_MESSAGE_BYTES
    for verdict, message in verdicts:
        left -= len(json.dumps(message))
        shortened.append([verdict, message if left >= 0 else ""])
    return shortened


def _is_well(reply: object) -> bool:
    return reply == ["v", None]


class _Tests:
    """Tests in one namespace, in which the program's names are remote objects."""

    def __init__(self, program: Pipe, names: Mapping[str, str], classes: Sequence[str]) -> None:
        self._program = program
        self._names = names
        self._classes = classes
        self._scope: dict[str, Any] = {"__name__": "tests"}
        self._verdict = ["passed", ""]

    def verdicts(self, preamble: str, tests: Sequence[str]) -> list[list[str]]:
        """Return the verdict and message of each test."""
        began = self._verdict_of(preamble)
        if began[0] != "passed":
            return [["error", began[1]] for _ in tests]
        return [self._verdict_of(test) for test in tests]

    def _verdict_of(self, source: str) -> list[str]:
        self._verdict = ["passed", ""]
        with self:
            for name, theirs in self._names.items():
                if name not in self._scope:
                    found = self._program.named(theirs)
                    is_tested = name in self._classes and isinstance(found, Mirror)
                    self._scope[name] = tested(found) if is_tested else found
            tree = ast.parse(source)
            lines = [one.lineno for one in ast.walk(tree) if isinstance(one, ast.Raise)]
            self._program.raising_lines = frozenset(lines)
            self._program.withheld = None
            exec(compile(tree, _TESTS_FILE, "exec"), self._scope)
        return self._verdict

    def __enter__(self) -> None:
        """Begin a test."""

    def __exit__(self, kind: type | None, error: BaseException | None, _trace: object) -> bool:
        """End a test and record the exception that it or the program raised."""
        if error is not None and kind is not None:
            own = isinstance(error, AssertionError) and error is not self._program.raised
            told = str(error) if own else f"{kind.__name__}: {error}"
            self._verdict = ["failed" if own else "error", told[:200]]
        elif self._program.withheld is not None:
            self._verdict = ["failed", f"kept from the test: {self._program.withheld}"[:200]]
        return True

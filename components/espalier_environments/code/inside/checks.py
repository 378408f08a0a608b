"""Runs tests that call a program in another process, and compares the results here.

The program's functions are remote objects: a call sends its arguments and gets back plain values,
which are rebuilt here. A program can therefore not return an object that equals everything, and its
process holds nothing of the tests: it sees the arguments of each call at the time of the call.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from espalier_environments.code.inside.program import Silence, open_pipes
from espalier_environments.code.inside.values import Unreadable, decode, encode

_MOST_LINE_BYTES = 4 * 2**20
_MOST_MESSAGE_BYTES = 24 * 2**10
"""Most bytes of all messages together, in JSON: the output of a program is cut at 64 KiB, and a
program under test chooses what its exceptions say. Messages beyond it are left out."""
_PR_SET_DUMPABLE = 4


class Gone(BaseException):
    """The program ended, takes too long, or sends unreadable data.

    This is not an `Exception`, so that a test that expects an exception does not catch it.
    """


class Channel:
    """Operations on the program, one at a time."""

    def __init__(self, to_program: int, from_program: int, deadline_s: float) -> None:
        self._to, self._from, self._deadline_s = to_program, from_program, deadline_s
        self._unread = b""
        self._over = ""
        """Why no further operation is possible; empty while they are."""
        self.raised: Exception | None = None
        """The last exception of the program, in the form in which it was raised here."""

    def ask(self, operation: str, *parts: Any) -> Any:  # noqa: ANN401 (any value)
        """Return the result of an operation.

        Raises:
            Gone: the program does not answer.
            Exception: the program's exception, as the built-in class of that name.
        """
        sent = parts if operation == "name" else [encode(part, _number_of) for part in parts]
        self.send(json.dumps([operation, *sent]).encode())
        reply = self.receive()
        try:
            match reply:
                case ["v", value]:
                    return decode(value, self._remote)
                case ["e", str(name), str(message)]:
                    self.raised = _exception(name, message)
                case _:
                    self._end()
        except (Unreadable, RecursionError):
            self._end()
        raise self.raised

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

    def _remote(self, number: object, name: object) -> Remote:
        return Remote(self, number, name)


class Remote:
    """An object of the program; equal only to itself."""

    def __init__(self, channel: Channel, number: object, name: object) -> None:
        self.__dict__.update(_channel=channel, _number=number, _name=name)

    def _ask(self, operation: str, *parts: Any) -> Any:  # noqa: ANN401 (any value)
        return self.__dict__["_channel"].ask(operation, self, *parts)

    def __call__(self, *positional: Any, **named: Any) -> Any:  # noqa: ANN401 (any value)
        """Call the program's function and return its result."""
        return self._ask("call", list(positional), named)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (any value)
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("get", name)

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401 (any value)
        self._ask("set", name, value)

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 (any value)
        return self._ask("item", key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ask("iterate"))

    def __len__(self) -> int:
        return self._ask("length")

    def __bool__(self) -> bool:
        return self._ask("truth")

    def __str__(self) -> str:
        return self._ask("text")

    def __repr__(self) -> str:
        return self._ask("show")


def _number_of(value: object) -> int:
    if not isinstance(value, Remote):
        raise TypeError(f"cannot be handed to the program: {type(value).__name__}")
    return value.__dict__["_number"]


def _exception(name: str, message: str) -> Exception:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(message)
        except TypeError:  # its constructor needs more than a message
            pass
    return RuntimeError(f"{name}: {message}")


def run_checks(
    preamble: str, names: Mapping[str, str], tests: Sequence[str], folder: str, timeout_s: float
) -> NoReturn:
    """Write [whether it compiles, [[verdict, message], ...]] to standard output.

    Args:
        preamble: source that is run before the tests.
        names: name in the tests -> name in the program.
        tests: source of each test, which passes if it runs to its end.
        folder: folder of the pipes.
        timeout_s: time limit of all tests together.
    """
    output = Silence()
    ctypes.CDLL(None).prctl(
        _PR_SET_DUMPABLE, 0, 0, 0, 0
    )  # other processes of this user cannot read our memory
    from_program, to_program = open_pipes(folder, is_program=False)
    program = Channel(to_program, from_program, time.monotonic() + timeout_s)
    compiled, fault = False, "it does not run"
    try:
        program.send(b"begin")
        compiled = _is_well(program.receive())
        began = program.receive() if compiled else None
        if _is_well(began):
            output.write([True, _shortened(_Tests(program, names).verdicts(preamble, tests))])
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

    def __init__(self, program: Channel, names: Mapping[str, str]) -> None:
        self._program = program
        self._names = names
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
                    self._scope[name] = self._program.ask("name", theirs)
            exec(source, self._scope)
        return self._verdict

    def __enter__(self) -> None:
        """Begin a test."""

    def __exit__(self, kind: type | None, error: BaseException | None, _trace: object) -> bool:
        """End a test and record the exception that it or the program raised."""
        if error is not None and kind is not None:
            own = isinstance(error, AssertionError) and error is not self._program.raised
            told = str(error) if own else f"{kind.__name__}: {error}"
            self._verdict = ["failed" if own else "error", told[:200]]
        return True

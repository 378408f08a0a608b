"""Judges a program by tests, in a sandbox.

The program runs in its own process, which is given the arguments of calls and nothing else. Its
return values are compared elsewhere: in this process if tests are cases, otherwise in a second run
in the sandbox, which the kernel isolates from the first (Landlock, and unreadable memory).
No program can influence its own verdict:

- it cannot read a test or an expected value, because no process in its reach holds one;
- it cannot end the judge: if its process ends, the remaining tests have failed;
- its output is dropped, and whatever it writes into the pipe is a value to be compared;
- values are rebuilt from their wire form, without any of its classes.

It does learn the arguments of the calls: for cases all at once, for checks one by one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from espalier.config import MOST_PROGRAM_S
from espalier.environments.interpreter import shortened
from espalier.environments.joined_source import joined_source
from espalier.rewards.unit_tests import TestReport, Verdict
from espalier.sandbox import ExecResult, Sandbox, SandboxRefused
from espalier_environments.code.config import GRACE_S
from espalier_environments.code.inside.values import Unreadable, decode
from espalier_environments.code.unit_tests import Case, UnitTests, cases_of

MAX_PROGRAM_CHARACTERS = 40_000
"""A longer answer is not run."""
_MESSAGE_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdicts on a program, and the reasons."""

    report: TestReport
    messages: tuple[str, ...]
    """What happened in each test; empty if it passed."""
    timed_out: bool = False
    """Whether a time limit ended it: it might do better another time."""


async def judge(
    sandbox: Sandbox,
    tests: UnitTests,
    statements: Sequence[str],
    program: str,
    *,
    timeout_s: float,
) -> Judgement:
    """Judge a program by some of a task's tests.

    Args:
        sandbox: a sandbox without remains of another program.
        tests: the task's tests.
        statements: the hidden or the visible ones of them.
        program: the policy's program, which is untrusted text.
        timeout_s: processor time of all tests together. Waiting ends at `_WALL` times as much, so
            that a busy machine fails no program.

    Raises:
        SandboxError: the sandbox is lost, or returns no result.
    """
    if len(program) > MAX_PROGRAM_CHARACTERS:
        return _nothing_ran(statements, "the program is too long")
    cases = cases_of(tests, statements)
    try:
        if cases is not None:
            return await _judge_cases(sandbox, tests, cases, program, timeout_s)
        return await _judge_checks(sandbox, tests, statements, program, timeout_s)
    except SandboxRefused as refused:
        if refused.status == _BUSY:
            raise
        return _nothing_ran(statements, f"refused: {refused}")


_BUSY = 429
_WALL = 2
"""Seconds of wall time for one of processor time: other sandboxes share the cores."""


async def _run(
    sandbox: Sandbox, code: str, timeout_s: float, *, stdin: bytes = b"", grace_s: float = 0.0
) -> ExecResult:
    """Run a script within the processor time of tests, and the wall time that goes with it."""
    limits = replace(sandbox.limits, cpu_s=min(timeout_s, sandbox.limits.cpu_s))
    wall_s = _wall_s(timeout_s) + grace_s
    return await sandbox.run_python(code, stdin=stdin, timeout_s=wall_s, limits=limits)


def _wall_s(timeout_s: float) -> float:
    return min(_WALL * timeout_s, MOST_PROGRAM_S - GRACE_S)


def _ran_out(result: ExecResult, timeout_s: float) -> bool:
    # the kernel ends a process at its limit of processor time, to a clock tick, and not the sandbox
    is_ended = result.signal == signal.SIGXCPU or result.cpu_s >= timeout_s
    return is_ended or result.timed_out or result.killed_by == "cpu_time"


def _nothing_ran(statements: Sequence[str], why: str) -> Judgement:
    verdicts: tuple[Verdict, ...] = ("error",) * len(statements)
    return Judgement(TestReport(compiled=False, verdicts=verdicts), (why,) * len(verdicts))


# ---------------------------------------------------------------------------------------- cases


async def _judge_cases(
    sandbox: Sandbox, tests: UnitTests, cases: Sequence[Case], program: str, timeout_s: float
) -> Judgement:
    script = _script("program", "run_cases", tests.prompt, program, tests.entry_point)
    calls = json.dumps([[case.function, case.arguments] for case in cases]).encode()
    result = await _run(sandbox, script, timeout_s, stdin=calls)
    ran_out = _ran_out(result, timeout_s)
    replies = [_reply(line) for line in result.stdout.splitlines()]
    compiled, began, *returned = (*replies[: 2 + len(cases)], *[None] * (2 + len(cases)))
    ended = _TOO_LONG if ran_out else "the program ended"
    verdicts: list[Verdict] = []
    messages: list[str] = []
    for case, reply in zip(cases, returned, strict=False):
        told = next(
            (one for one in (compiled, began, reply) if one is None or one[0] == "e"), reply
        )
        verdict, message = _compared(case, told, ended)
        verdicts.append(verdict)
        messages.append(message)
    report = TestReport(
        compiled=compiled is not None and compiled[0] == "v", verdicts=tuple(verdicts)
    )
    return Judgement(report, tuple(messages), timed_out=ran_out)


def _reply(line: bytes) -> list[Any] | None:
    """Parse a line written by the program's process; None if it is not a valid reply."""
    try:
        reply: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match reply:
        case ["v", value]:
            return ["v", value]
        case ["e", str(name), str(message)]:
            return ["e", name, message]
        case _:
            return None


def _compared(case: Case, reply: list[Any] | None, ended: str) -> tuple[Verdict, str]:
    if reply is None:
        return "error", ended
    if reply[0] == "e":
        return "error", _shown(f"{reply[1]}: {reply[2]}")
    try:
        value = decode(reply[1], _unequal)
        if _is_equal(value, case.expected):
            return "passed", ""
        return "failed", _shown(f"{case.text} gave {value!r}")
    except (
        Unreadable,
        RecursionError,
        ValueError,
        ArithmeticError,
    ):  # an int with too many digits to print, a Decimal that compares with nothing
        return "failed", f"{_shown(case.text)} gave no plain value"


def _is_equal(value: object, expected: object) -> bool:
    return bool(value == expected)


def _unequal(reference: Sequence[Any]) -> object:
    """Return the plain value of an object of a class derived from a plain one.

    Any other object of the program has a stand-in, which equals nothing.
    """
    return decode(reference[3], _unequal) if len(reference) == _WITH_PLAIN else object()


_WITH_PLAIN = 4
"""Parts of a reference that has a plain value."""


def _shown(text: str) -> str:
    return shortened(text, _MESSAGE_CHARACTERS)


# ---------------------------------------------------------------------------------------- checks


async def _judge_checks(
    sandbox: Sandbox, tests: UnitTests, statements: Sequence[str], program: str, timeout_s: float
) -> Judgement:
    folder = f"judging-{secrets.token_hex(8)}"
    served = _script("program", "serve", tests.prompt, program, tests.entry_point, folder)
    checked = _script(
        "checks", "run_checks", tests.preamble, tests.functions, tests.tested_classes,
        list(statements), folder, _wall_s(timeout_s),
    )  # fmt: skip
    serving = asyncio.ensure_future(_run(sandbox, served, timeout_s, grace_s=GRACE_S))
    try:
        checks = await _run(sandbox, checked, timeout_s, grace_s=GRACE_S)
        await asyncio.wait({serving}, timeout=_END_S)  # its pipes are closed, so it ends by itself
    finally:
        serving.cancel()
        # its error does not matter: the checks notice a lost sandbox too
        (served_by,) = await asyncio.gather(serving, return_exceptions=True)
    ran_out = isinstance(served_by, ExecResult) and _ran_out(served_by, timeout_s)
    return _verdicts_of(checks, statements, ran_out=ran_out or _ran_out(checks, timeout_s))


_END_S = 0.2
"""Time that the program's process has to end after its tests, before it is killed."""


def _verdicts_of(result: ExecResult, statements: Sequence[str], *, ran_out: bool) -> Judgement:
    """Return the verdicts written by the tests' process, the only one that has this output.

    Args:
        result: how that process ended.
        statements: the tests.
        ran_out: whether one of the two processes used up its time.
    """
    if result.succeeded and not result.truncated:
        compiled, found = cast("tuple[bool, list[tuple[Verdict, str]]]", json.loads(result.stdout))
    else:
        # the program must have ended it: for any other cause the sandbox raises an error
        ended: tuple[Verdict, str] = ("error", "the program ended its tests")
        compiled, found = True, [ended] * len(statements)
    assert len(found) == len(statements), "a verdict for each test"
    return Judgement(
        TestReport(compiled=compiled, verdicts=tuple(verdict for verdict, _ in found)),
        tuple(_shown(told.replace(_GONE, _TOO_LONG) if ran_out else told) for _, told in found),
        timed_out=ran_out or any(_TOO_LONG in message for _, message in found),
    )


_TOO_LONG, _GONE = "the program takes too long", "the program is gone"
"""The texts of the tests' process."""


# ---------------------------------------------------------------------------------------- scripts

_INSIDE = Path(__file__).parent / "inside"
_PARTS = {"program": ("values", "program"), "checks": ("values", "program", "remotes", "checks")}


def _script(kind: str, function: str, *arguments: object) -> str:
    """Return the source of the modules inside, and a call of one of their functions."""
    called = f"{function}({', '.join(map(ascii, arguments))})"
    modules = (_INSIDE / f"{name}.py" for name in _PARTS[kind])
    return f"{joined_source(*modules)}\n{called}\n"

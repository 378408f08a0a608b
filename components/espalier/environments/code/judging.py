"""Judges a program by tests, in a sandbox.

The program runs in a process of its own, which knows arguments of calls and nothing else. What its
functions return is compared elsewhere: here, where tests are cases, or in a second run beside it in
the sandbox, which the kernel keeps apart from the first (Landlock, and memory that cannot be read).
No program passes a verdict on itself:

- it cannot read a test or an expected value, for they are in no process that it reaches;
- it cannot end the judge: where its process ends, the tests that were left have failed;
- what it prints is dropped, and what it writes into the pipe is a value to be compared;
- values are built anew from their wire form, and none of its classes comes with them.

It does learn the arguments of the calls: of cases all of them at once, of checks one by one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from espalier.environments.code.config import GRACE_S
from espalier.environments.code.inside.values import Unreadable, decode
from espalier.environments.code.unit_tests import Case, UnitTests, cases_of
from espalier.environments.interpreter import shortened
from espalier.environments.joined_source import joined_source
from espalier.rewards import TestReport, Verdict
from espalier.sandbox import ExecResult, Sandbox, SandboxRefused

MAX_PROGRAM_CHARACTERS = 40_000
"""A longer answer is no program."""
_MESSAGE_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a program did, and why."""

    report: TestReport
    messages: tuple[str, ...]
    """What happened in each test; empty where it passed."""
    timed_out: bool = False
    """Whether a limit of time ended it: another time it might do better."""


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
        sandbox: in which nothing of another program is left.
        tests: of the task.
        statements: its hidden or its visible ones.
        program: hostile text.
        timeout_s: for all tests together.

    Raises:
        SandboxError: the sandbox is lost, or gives no result.
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


def _nothing_ran(statements: Sequence[str], why: str) -> Judgement:
    verdicts: tuple[Verdict, ...] = ("error",) * len(statements)
    return Judgement(TestReport(compiled=False, verdicts=verdicts), (why,) * len(verdicts))


# ---------------------------------------------------------------------------------------- cases


async def _judge_cases(
    sandbox: Sandbox, tests: UnitTests, cases: Sequence[Case], program: str, timeout_s: float
) -> Judgement:
    result = await sandbox.run_python(
        _script("program", "run_cases", tests.prompt, program, tests.entry_point),
        stdin=json.dumps([[case.function, case.arguments] for case in cases]).encode(),
        timeout_s=timeout_s,
    )
    replies = [_reply(line) for line in result.stdout.splitlines()]
    compiled, began, *returned = (*replies[: 2 + len(cases)], *[None] * (2 + len(cases)))
    ended = _TOO_LONG if result.timed_out else "the program ended"
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
    return Judgement(report, tuple(messages), timed_out=result.timed_out)


def _reply(line: bytes) -> list[Any] | None:
    """A line that the program's process wrote; None where it is no reply."""
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
    except (Unreadable, RecursionError, ValueError):  # a ValueError: more digits than are printed
        return "failed", f"{_shown(case.text)} gave no plain value"


def _is_equal(value: object, expected: object) -> bool:
    return bool(value == expected)


def _unequal(_number: object, _name: object) -> object:
    """Stands for an object of the program: equal to nothing."""
    return object()


def _shown(text: str) -> str:
    return shortened(text, _MESSAGE_CHARACTERS)


# ---------------------------------------------------------------------------------------- checks


async def _judge_checks(
    sandbox: Sandbox, tests: UnitTests, statements: Sequence[str], program: str, timeout_s: float
) -> Judgement:
    folder = f"judging-{secrets.token_hex(8)}"
    served = _script("program", "serve", tests.prompt, program, tests.entry_point, folder)
    checked = _script(
        "checks", "run_checks", tests.preamble, tests.functions, list(statements), folder, timeout_s
    )
    serving = asyncio.ensure_future(sandbox.run_python(served, timeout_s=timeout_s + GRACE_S))
    try:
        checks = await sandbox.run_python(checked, timeout_s=timeout_s + GRACE_S)
        await asyncio.wait({serving}, timeout=_END_S)  # its pipes are closed: it ends by itself
    finally:
        serving.cancel()
        # whatever became of it: a sandbox that is lost is lost to the checks as well
        await asyncio.gather(serving, return_exceptions=True)
    return _verdicts_of(checks, statements)


_END_S = 0.2
"""For the program's process to end after its tests, before it is ended."""


def _verdicts_of(result: ExecResult, statements: Sequence[str]) -> Judgement:
    """What the tests' process wrote; it is the only one that holds this output."""
    if result.succeeded:
        compiled, found = cast("tuple[bool, list[tuple[Verdict, str]]]", json.loads(result.stdout))
    else:
        # only the program can have ended it: what else ends a run is raised by the sandbox
        ended: tuple[Verdict, str] = ("error", "the program ended its tests")
        compiled, found = True, [ended] * len(statements)
    assert len(found) == len(statements), "a verdict for each test"
    return Judgement(
        TestReport(compiled=compiled, verdicts=tuple(verdict for verdict, _ in found)),
        tuple(_shown(message) for _, message in found),
        timed_out=result.timed_out or any(_TOO_LONG in message for _, message in found),
    )


_TOO_LONG = "the program takes too long"
"""As `Channel` says it."""


# ---------------------------------------------------------------------------------------- scripts

_INSIDE = Path(__file__).parent / "inside"
_PARTS = {"program": ("values", "program"), "checks": ("values", "program", "checks")}


def _script(kind: str, function: str, *arguments: object) -> str:
    """The text of the modules inside, and a call of one of their functions."""
    called = f"{function}({', '.join(map(ascii, arguments))})"
    modules = (_INSIDE / f"{name}.py" for name in _PARTS[kind])
    return f"{joined_source(*modules)}\n{called}\n"

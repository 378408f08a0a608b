"""Answers that are proven by running a program: what a triple (program, input, output) leaves out.

    output    deduction: the program and an input are shown
    input     abduction: the program and an output are shown; any input that leads there is right
    program   induction: some inputs and outputs are shown; it is proven on others

Absolute Zero's three kinds of tasks (Zhao et al. 2025, arXiv:2505.03335). Whatever runs, runs in a
sandbox; what it prints is compared here, so that no program passes a verdict on itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pydantic import JsonValue

from espalier.environments.python_math.python_runs import PythonRuns
from espalier.records import Task
from espalier.sandbox import SandboxRefused

Asked = Literal["output", "input", "program"]
FUNCTION = "f"
"""What every program of a triple defines."""
MAX_ANSWER_CHARACTERS = 1000
_READ = "import ast as _ast\n"


class Case(NamedTuple):
    """One run of a program: its arguments as they stand in a call, and what it returned."""

    arguments: str
    output: str
    """As `repr` writes it."""


def case_arguments(cases: Sequence[Case]) -> list[JsonValue]:
    """Cases as one argument of a task's environment."""
    return [list(case) for case in cases]


def returning(program: str, arguments: Sequence[str]) -> str:
    """A script that prints what the program's function returns for each of `arguments`."""
    return f"{program}\n{_READ}{_calls(FUNCTION, arguments)}"


def printed_lines(stdout: bytes) -> list[str]:
    """The lines of a program's output."""
    return stdout.decode(errors="replace").splitlines()


async def is_proven(task: Task, answer: str | None, runs: PythonRuns) -> bool:
    """Whether running the answer, or the program on it, gives what the task's cases say.

    Args:
        task: its verifier is of the kind "execution".
        answer: hostile text; what is to be data is read as a literal, inside the sandbox.
        runs: of programs that find nothing of each other.

    Raises:
        EnvironmentLostError: the sandbox is gone.
    """
    if answer is None or len(answer) > MAX_ANSWER_CHARACTERS:
        return False
    script, expected = _script(task, answer)
    try:
        result = await runs.run(script)
    except SandboxRefused:
        return False
    return result.succeeded and printed_lines(result.stdout) == expected


def _script(task: Task, answer: str) -> tuple[str, list[str]]:
    """What to run, and what it prints if the answer is right."""
    given: Any = task.arguments["cases"]  # tasks of 0.1 held JSON in a string
    cases = [Case(*row) for row in (json.loads(given) if isinstance(given, str) else given)]
    outputs = [case.output for case in cases]
    match task.arguments["asked"]:
        case "output":
            # equal values may be written differently: [1,2] is [1, 2]
            one, other = (f"_ast.literal_eval({text!r})" for text in (answer.strip(), outputs[0]))
            return f"{_READ}print({one} == {other} and type({one}) is type({other}))", ["True"]
        case "input":
            return returning(str(task.arguments["program"]), [answer]), outputs
        case _:
            body = answer.removeprefix(f"{FUNCTION} =").strip()
            if not body.startswith("lambda"):
                body = f"lambda {task.arguments['parameters']}: {body}"
            arguments = [case.arguments for case in cases]
            return f"_f = eval({body!r})\n{_READ}{_calls('_f', arguments)}", outputs


def _calls(function: str, arguments: Sequence[str]) -> str:
    """Arguments are read as literals: what stands in them is data, whoever wrote it."""
    return "".join(
        f"print(repr({function}(*_ast.literal_eval({f'({text.strip()},)'!r}))))\n"
        for text in arguments
    )

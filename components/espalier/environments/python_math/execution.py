"""Tasks whose answers are proven by running a program in a sandbox.

A task is a triple (program, input, output) with one part left out (Absolute Zero, Zhao et al. 2025,
arXiv:2505.03335):

    output    deduction: the program and an input are shown
    input     abduction: the program and an output are shown; any input that leads there is right
    program   induction: some inputs and outputs are shown; it is proven on others

Whatever runs, runs in a sandbox; what it prints is compared here, so that no program passes a
verdict on itself. The output of a proposed program is taken only where two runs agree.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

from pydantic import JsonValue

from espalier.environments.contract import EnvironmentLostError
from espalier.environments.python_math.interpreter import PythonRuns
from espalier.records import Task
from espalier.sandbox import SandboxRefused

Asked = Literal["output", "input", "program"]
FUNCTION = "f"
"""Name of the function that every program defines."""
MAX_ANSWER_CHARACTERS = 1000
_READ = "import ast as _ast\n"


class Case(NamedTuple):
    """A run of a program: the source text of its arguments, and what it returned."""

    arguments: str
    output: str
    """As `repr` writes it."""


def case_arguments(cases: Sequence[Case]) -> list[JsonValue]:
    """Cases as JSON, for `Task.arguments`."""
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
    """The script that checks the answer, and the lines it prints if the answer is right."""
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
    """Calls of `function`; arguments are parsed as literals, so that hostile text stays data."""
    return "".join(
        f"print(repr({function}(*_ast.literal_eval({f'({text.strip()},)'!r}))))\n"
        for text in arguments
    )


MAX_OUTPUT_CHARACTERS = 120
_PLAIN = (int, float, str, bool, type(None))


async def executed(program: str, inputs: Sequence[str], runs: PythonRuns) -> list[Case] | str:
    """A case for each input, or the reason why the program is refused.

    Args:
        program: hostile, already screened.
        inputs: arguments as they stand in a call.
        runs: of programs that find nothing of each other.
    """
    script = returning(program, inputs)
    try:
        first, second = await runs.run(script), await runs.run(script)
    except SandboxRefused:
        return "program_refused"
    except EnvironmentLostError:
        return "environment_lost"
    if not (first.succeeded and second.succeeded):
        return "program_fails"
    if first.stdout != second.stdout:
        return "not_deterministic"
    outputs = printed_lines(first.stdout)
    if len(outputs) != len(inputs):
        return "prints_besides"
    if not all(map(_is_plain_value, outputs)):
        return "output_no_plain_value"
    return [Case(*pair) for pair in zip(inputs, outputs, strict=True)]


def _is_plain_value(text: str) -> bool:
    """Whether the text is how Python writes a short value of numbers, texts, lists and the like.

    A set is none: the order in which it is written is not its own.
    """
    if len(text) > MAX_OUTPUT_CHARACTERS:
        return False
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False
    return _is_plain(value) and repr(value) == text


def _is_plain(value: Any) -> bool:  # noqa: ANN401 (whatever a literal spells)
    match value:
        case list() | tuple():
            return all(map(_is_plain, cast("Sequence[Any]", value)))
        case dict():
            entries = cast("dict[Any, Any]", value)
            return all(map(_is_plain, (*entries.keys(), *entries.values())))
        case _:
            return isinstance(value, _PLAIN)

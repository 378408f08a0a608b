"""What a program returns: run twice in a sandbox, and taken only where both runs agree."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, cast

from espalier.environments.contract import EnvironmentLostError
from espalier.environments.python_math.executed import Case, printed_lines, returning
from espalier.environments.python_math.python_runs import PythonRuns
from espalier.sandbox import SandboxRefused

MAX_OUTPUT_CHARACTERS = 120
_PLAIN = (int, float, str, bool, type(None))


async def executed(program: str, inputs: Sequence[str], runs: PythonRuns) -> list[Case] | str:
    """A case of every input, or why the program is not to be trusted with them.

    Args:
        program: hostile, and screened.
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

"""Tasks whose answers are proven by running a program in a sandbox.

A task is a triple (program, input, output) with one part left out (Absolute Zero, Zhao et al. 2025,
arXiv:2505.03335):

    output    deduction: the program and an input are shown
    input     abduction: the program and an output are shown; any input that leads there is right
    program   induction: some inputs and outputs are shown; it is proven on others

Whatever runs, runs in a sandbox, and what it prints is compared here: no program passes a verdict
on itself. What that guarantees of an answer:

- An answer to "output" or "input" is read as a literal and never executed. The program that an
  input is given to was proposed and screened, not written by the policy.
- An answer to "program" is executed, and may do whatever a sandbox allows: print by itself, end the
  interpreter, replace `repr` and `print`, answer any comparison. It is right only if the outputs of
  the hidden cases stand on its standard output, each on its line, and those are nowhere in the
  sandbox: the arguments of these cases are. So it has to compute them, by whatever means.
- An answer that fails, is killed by a limit, prints anything else or ends its sandbox is wrong.

The output of a proposed program is taken only where a fork of the warm interpreter and several
interpreters that were started for it agree. Those differ in hash seed, addresses, process ids,
working folder and time, and mostly in their sandbox: a program that depends on the order of a set
passes by chance alone.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

from pydantic import JsonValue

from espalier.environments.contract import EnvironmentLostError, ProgramBrokeSandboxError
from espalier.environments.interpreter import PythonRuns
from espalier.records import Task
from espalier.sandbox import SandboxRefused

Asked = Literal["output", "input", "program"]
FUNCTION = "f"
"""Name of the function that every program defines."""
MAX_ANSWER_CHARACTERS = 1000


class Case(NamedTuple):
    """A run of a program: the source text of its arguments, and what it returned."""

    arguments: str
    output: str
    """As `repr` writes it."""


def case_arguments(cases: Sequence[Case]) -> list[JsonValue]:
    """Cases as JSON, for `Task.arguments`."""
    return [list(case) for case in cases]


_SCRIPT = """\
def _main():
    from ast import literal_eval
    write, show, scope = print, repr, {{"__name__": "__main__"}}
    exec({program!r}, scope)
    for text in {arguments!r}:
        write(show(scope[{function!r}](*literal_eval(text))))
_main()
"""
"""Names of its own, so that those which a program defines are not the script's."""

_SAME_VALUE = """\
from ast import literal_eval
def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        keys = sorted(one, key=repr), sorted(other, key=repr)
        return same(*keys) and all(same(one[key], other[key]) for key in one)
    return one == other
print(same(literal_eval({answer!r}), literal_eval({output!r})))
"""
"""Equal values may be written differently: [1,2] is [1, 2]. Their types are equal as well: [True]
is not [1]."""


def returning(program: str, arguments: Sequence[str], function: str = FUNCTION) -> str:
    """A script that prints what the program's function returns for each of `arguments`.

    The arguments are read as literals, so that hostile text stays data.
    """
    read = [f"({text.strip()},)" for text in arguments]
    return _SCRIPT.format(program=program, arguments=read, function=function)


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
        EnvironmentLostError: the sandbox was lost from outside.
        ProgramBrokeSandboxError: the answer ended the sandbox: it is wrong.
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
    given: Any = task.arguments["cases"]
    cases = [Case(*row) for row in given]
    outputs = [case.output for case in cases]
    match task.arguments["asked"]:
        case "output":
            return _SAME_VALUE.format(answer=answer.strip(), output=outputs[0]), ["True"]
        case "input":
            return returning(str(task.arguments["program"]), [answer]), outputs
        case _:
            body = answer.removeprefix(f"{FUNCTION} =").strip()
            if not body.startswith("lambda"):
                body = f"lambda {task.arguments['parameters']}: {body}"
            arguments = [case.arguments for case in cases]
            # evaluated as an expression: what is more than that is refused
            return returning(f"_f = eval({body!r})", arguments, "_f"), outputs


MAX_OUTPUT_CHARACTERS = 120
_PLAIN = (int, float, str, bool, type(None))


FRESH_RUNS = 4
"""Hash seeds that a program is tried under besides that of the warm interpreter. A set of two texts
stands in the same order under all of them in one of 16 cases."""


async def executed(program: str, inputs: Sequence[str], runs: PythonRuns) -> list[Case] | str:
    """A case for each input, or the reason why the program is refused.

    Args:
        program: hostile, already screened.
        inputs: arguments as they stand in a call.
        runs: of programs that find nothing of each other.
    """
    script = returning(program, inputs)
    try:
        first = await runs.run(script)
        if not first.succeeded:
            return "program_fails"
        for _ in range(FRESH_RUNS):
            again = await runs.run_afresh(script)
            if not again.succeeded:
                return "program_fails"
            if again.stdout != first.stdout:
                return "not_deterministic"
    except SandboxRefused:
        return "program_refused"
    except EnvironmentLostError:
        return "environment_lost"
    except ProgramBrokeSandboxError:
        return "program_broke_sandbox"
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

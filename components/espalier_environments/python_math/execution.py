"""Tasks whose answers are proven by running a program in a sandbox.

A task is a triple (program, input, output) with one part left out (Absolute Zero, Zhao et al. 2025,
arXiv:2505.03335):

    output    deduction: the program and an input are shown
    input     abduction: the program and an output are shown; any input that leads there is right
    program   induction: some inputs and outputs are shown; it is proven on others

Programs run in a sandbox, and their output is compared in this process, so that no program judges
itself. Of an answer this guarantees:

- An answer to "output" or "input" is read as a literal and never executed. The program that an
  input is given to was proposed and screened, not written by the policy.
- An answer to "program" is executed, and may do whatever a sandbox allows: print, end the
  interpreter, replace `repr` and `print`, override comparisons. It is right only if standard output
  has the outputs of the hidden cases, one per line. The sandbox holds the arguments of these cases
  but not the outputs, so the answer has to compute them, by whatever means.
- An answer that fails, is killed by a limit, prints anything else or ends its sandbox is wrong.

The output of a proposed program is accepted only if a fork of the warm interpreter and several
newly started interpreters agree. Those differ in hash seed, addresses, process ids, working folder
and time, and mostly in their sandbox: a program that depends on the order of a set passes only by
chance.
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

UnknownPart = Literal["output", "input", "program"]
FUNCTION = "f"
"""Name of the function that every program defines."""
MAX_ANSWER_CHARACTERS = 1000


class Case(NamedTuple):
    """A run of a program: the source text of its arguments, and its return value."""

    arguments: str
    output: str
    """The return value as written by `repr`."""


def case_arguments(cases: Sequence[Case]) -> list[JsonValue]:
    """Return cases as JSON, for `Task.arguments`."""
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
"""Script that runs a program; local names keep its definitions from replacing the script's own."""

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
"""Script that compares values, since equal values may be written differently: [1,2] is [1, 2].
Types must be equal too: [True] is not [1]."""


def returning(program: str, arguments: Sequence[str], function: str = FUNCTION) -> str:
    """Return a script that prints the function's value for each of `arguments`.

    The arguments are read as literals, so that none of them can run as code.
    """
    read = [f"({text.strip()},)" for text in arguments]
    return _SCRIPT.format(program=program, arguments=read, function=function)


def printed_lines(stdout: bytes) -> list[str]:
    """Return the lines of a program's output."""
    return stdout.decode(errors="replace").splitlines()


async def is_proven(task: Task, answer: str | None, runs: PythonRuns) -> bool:
    """Return whether running the answer, or the program on it, gives the outputs of the cases.

    Args:
        task: a task whose verifier has the kind "execution".
        answer: untrusted text; data is read as a literal, inside the sandbox.
        runs: a runner whose programs are isolated from each other.

    Raises:
        EnvironmentLostError: the sandbox was lost for an outside cause.
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
            # evaluated as an expression, so that anything else fails
            return returning(f"_f = eval({body!r})", arguments, "_f"), outputs


MAX_OUTPUT_CHARACTERS = 120
_PLAIN = (int, float, str, bool, type(None))


FRESH_RUNS = 4
"""Number of hash seeds that a program is tried under, besides that of the warm interpreter. A set
of two texts has the same order under all of them in one of 16 cases."""


async def executed(program: str, inputs: Sequence[str], runs: PythonRuns) -> list[Case] | str:
    """Return a case for each input, or the reason why the program is refused.

    Args:
        program: an untrusted program that was screened.
        inputs: the source text of a call's arguments.
        runs: a runner whose programs are isolated from each other.
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
    """Return whether the text is the `repr` of a short value of numbers, texts, lists and dicts.

    Sets are excluded, because the order in which they are written is not determined.
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

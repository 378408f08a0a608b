"""A teacher that solves a problem by a program, and may make a mistake on the way."""

from __future__ import annotations

import re
from dataclasses import dataclass

from espalier.environments.python_math.arithmetic import VARIABLE
from espalier.environments.teaching import GaveUp, Script
from espalier.records import FinalAnswer, Task, ToolCall, ToolCalls
from espalier.synthesis.search_wording import READY_TO_ANSWER

UNKNOWN_NAME = "unknown_name"
"""The detour: a program that prints a name which it never made, and reads the error."""
MAX_LINES_BEFORE_DETOUR = 5
"""Longer programs take no detour: an episode's limit on tokens would cut them off."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class MathQuestion:
    """A task, and the plan and the program that solve it."""

    task: Task
    plan: str
    program: str

    def detour_taken(self, detour: str) -> str:
        """The kind of detour that its demonstration takes where `detour` is asked for."""
        return detour if self.program.count("\n") < MAX_LINES_BEFORE_DETOUR else ""


def program_script(question: MathQuestion, *, detour: bool) -> Script:
    """Run the program of the question and answer what it prints last."""
    program = question.program
    if detour:
        yield _run(question.plan, f"{program.rpartition('print')[0]}print({VARIABLE * 2})")
    printed = yield _run(question.plan, program)
    numbers = _NUMBER.findall(printed)
    if not numbers or not printed.succeeded:
        raise GaveUp("program_failed")
    answer = numbers[-1].removesuffix(".0")
    yield FinalAnswer(rf"\boxed{{{answer}}}", READY_TO_ANSWER)


def _run(plan: str, program: str) -> ToolCalls:
    return ToolCalls((ToolCall(name="python", arguments={"code": program}),), plan)

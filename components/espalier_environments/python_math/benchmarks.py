"""Public sets of problems: GSM8K, MATH and MATH-500, AIME, AMC.

    GSM8K       {question, answer}       the final answer stands after "#### " (see `problems`)
    MATH-500    {problem, solution, answer, subject, level, unique_id}
    MATH        {problem, solution, type, level}       the answer is in the solution's last box
    AIME, AMC   {id, problem, answer, ...}       AMC's answers are numbers such as 27.0

An answer is right if it means the same as the gold one, by `espalier.rewards.math_equivalent`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, Field, JsonValue, StringConstraints

from espalier.environments.benchmarks import BenchmarkRow, benchmark_tasks, read_rows
from espalier.environments.family import make_task
from espalier.records import DataError, Task
from espalier.rewards.math_equivalence import last_boxed
from espalier_environments.python_math.problems import extract_final_answer

_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Row(BenchmarkRow):
    """A problem of any of these sets."""

    problem: _Text | None = None
    question: _Text | None = None
    answer: str | int | float | None = None
    solution: str = ""
    subject: str = Field(default="", validation_alias=AliasChoices("subject", "type"))
    level: str | int = ""


def read_problems(path: Path) -> list[Task]:
    """Return the problems of a file.

    Raises:
        DataError: a row is malformed or has no final answer; the message names it.
    """
    return benchmark_tasks(path, [_task(path, where, row) for where, row in read_rows(path, _Row)])


def _task(path: Path, where: str, row: _Row) -> Task:
    text = row.problem or row.question
    if text is None:
        raise DataError(f"{where}: has neither a problem nor a question")
    groups = {"kind": row.subject, "level": str(row.level)}
    shown: JsonValue = {name: said for name, said in groups.items() if said}
    return make_task(
        "python_math",
        text,
        gold=(_gold(where, row),),
        split="heldout",
        source=path.name,
        key=text,
        kind="math_equivalence",
        metadata={"extra": {"benchmark": shown}},
    )


def _gold(where: str, row: _Row) -> str:
    answer = row.answer
    if row.problem is None:  # GSM8K
        gold = extract_final_answer(answer) if isinstance(answer, str) else None
        if gold is None:
            raise DataError(f"{where}: its answer has no final number after '#### '")
        return gold
    if isinstance(answer, float) and answer.is_integer():
        return str(int(answer))
    gold = last_boxed(row.solution) if answer is None else str(answer).strip()
    if not gold:
        raise DataError(f"{where}: has neither an answer nor a solution with one in \\boxed{{}}")
    return gold

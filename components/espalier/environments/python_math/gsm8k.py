"""Word problems in GSM8K's format: JSON lines of {question, answer}, of the set or a user's own.

The answer is a worked solution with calculator notes; the final answer stands after `#### `:

    Half of 48 is 48/2 = <<48/2=24>>24, together 48 + 24 = <<48+24=72>>72.
    #### 72

Cobbe et al. 2021, arXiv:2110.14168; openai/grade-school-math.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.records import DataError

_FINAL_ANSWER = re.compile(r"#### (\-?[0-9\.\,]+)")
"""As upstream (grade_school_math/dataset.py, ANS_RE)."""
_NOTE = re.compile(r"<<([^<>=]*)=([^<>]*)>>")


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A question, its final answer, and the expressions that its solution computes, in order."""

    question: str
    answer: str
    expressions: tuple[str, ...] = ()


def extract_final_answer(completion: str) -> str | None:
    """What stands after the first `#### `, without commas; None where there is no number.

    The rule of upstream's `extract_answer`: a trailing dot stays, and `#### $15` has no answer.
    """
    match = _FINAL_ANSWER.search(completion)
    return match[1].strip().replace(",", "") if match else None


def read_word_problems(path: Path) -> list[WordProblem]:
    """Read a file in GSM8K's format.

    Raises:
        DataError: naming the file and the line that is not such a problem, or an empty file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as word problems: {error}") from error
    problems = list(_problems(path, lines))
    if not problems:
        raise DataError(f"{path}: holds no word problem")
    return problems


def _problems(path: Path, lines: Sequence[str]) -> Iterator[WordProblem]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        question, solution = _texts(path, number, line)
        answer = extract_final_answer(solution)
        if answer is None:
            raise DataError(
                f"{path}, line {number}: its answer has no final number after '#### '. End the "
                "answer with a line such as '#### 72'"
            )
        expressions = tuple(match[1].strip() for match in _NOTE.finditer(solution))
        yield WordProblem(question, answer, expressions)


def _texts(path: Path, number: int, line: str) -> tuple[str, str]:
    try:
        row: Any = json.loads(line)
        question, solution = row["question"], row["answer"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}, line {number}: not a JSON object with question and answer ({error})"
        ) from error
    if not isinstance(question, str) or not isinstance(solution, str) or not question.strip():
        raise DataError(f"{path}, line {number}: question and answer must be text")
    return question.strip(), solution

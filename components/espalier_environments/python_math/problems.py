"""Word problems in GSM8K's format, read from the user's files and split by wording.

A line is a JSON object {question, answer}. The answer is a worked solution with calculator notes,
whose final answer follows `#### `:

    Half of 48 is 48/2 = <<48/2=24>>24, together 48 + 24 = <<48+24=72>>72.
    #### 72

Cobbe et al. 2021, arXiv:2110.14168; openai/grade-school-math.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from espalier.config import SplitsConfig
from espalier.environments.family import dealt_split
from espalier.records import ArtifactError, DataError, Split
from espalier_environments.python_math.config import PythonMathConfig

_FINAL_ANSWER = re.compile(
    r"#### (-?)"
    r"((?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)"
    r"((?:[/:][0-9]+)*)[%.]?(?![^\S\n]*(?:[\d.,/:^!_*+=<>\\\u00d7\u00f7\u00b7\u2013\u2212-]"
    r"|(?i:(?:dozen|hundred|thousand|million|billion|trillion)\b)))"
)
_NOTE = re.compile(r"<<([^<>=]*)=([^<>]*)>>")


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A question, its final answer, and the expressions that its solution computes, in order."""

    question: str
    answer: str
    expressions: tuple[str, ...] = ()


def extract_final_answer(completion: str) -> str | None:
    """Return the number after the first `#### `, without commas of thousands; None if none.

    A fraction, a time and an exponent are part of it; a unit or a dot behind it is left out.
    `#### 1 000`, `#### 3,5`, `#### 10^2` and `#### 2 million` have no answer: upstream's rule
    (grade_school_math/dataset.py) would read 1, 35, 10 and 2, and all right answers would be wrong.
    """
    match = _FINAL_ANSWER.search(completion)
    return "".join(match.groups()).replace(",", "") if match else None


def read_word_problems(path: Path) -> list[WordProblem]:
    """Return the problems of a file in GSM8K's format.

    Raises:
        DataError: the file is empty, or a line is malformed; the message names both.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
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
                f"{path}, line {number}: its answer has no single final number after '#### '. End "
                "the answer with a line such as '#### 72', '#### 1,072.5' or '#### 3/4'"
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


PROBLEMS_NAME = "problems.jsonl"


@dataclass(frozen=True, slots=True)
class DealtProblem:
    """A problem and its split."""

    problem: WordProblem
    split: Split


_BLANKS = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
_DECORATION = re.compile(r"[?;\"'`\u2018\u2019\u201c\u201d]|\.(?!\d)")


def _wording(question: str) -> str:
    """What two questions with the same wording have in common: all but case, blanks and quotes.

    Signs and operators count: 12 + 5 is not 12 - 5.
    """
    text = unicodedata.normalize("NFKC", question).casefold()
    return _BLANKS.sub("", _DECORATION.sub("", text))


def deal_problems(
    config: PythonMathConfig, splits: SplitsConfig, note: Callable[[str], None] | None = None
) -> list[DealtProblem]:
    """Read the profile's problem files and assign the problems to splits.

    The split of a problem depends only on its wording, not on the seed or the rest of the file. If
    there is a file of held-out problems, problems with the same wording are left out of the other
    splits. Of problems with one wording the last one stays.

    Args:
        config: names the files.
        splits: shares of the splits.
        note: is told how many problems were left out.

    Raises:
        DataError: a file is not in GSM8K's format; the message names the line.
    """
    if config.problems is None:
        return []
    problems = read_word_problems(config.problems)
    own = {_wording(problem.question): problem for problem in problems}
    if config.heldout_problems is None:
        dealt = [DealtProblem(problem, dealt_split(text, splits)) for text, problem in own.items()]
    else:
        apart = read_word_problems(config.heldout_problems)
        problems = [*problems, *apart]
        heldout = {_wording(problem.question): problem for problem in apart}
        dealt = [
            DealtProblem(problem, dealt_split(text, splits, heldout=False))
            for text, problem in own.items()
            if text not in heldout
        ]
        dealt += [DealtProblem(problem, "heldout") for problem in heldout.values()]
    repeated = len(problems) - len(dealt)
    if repeated and note is not None:
        note(f"left out {repeated} problems with the wording of another one")
    return dealt


def save_problems(problems: Iterable[DealtProblem], directory: Path) -> int:
    """Write problems as JSON lines and return their number."""
    rows = [json.dumps(asdict(dealt), sort_keys=True, ensure_ascii=False) for dealt in problems]
    text = "".join(f"{row}\n" for row in rows)
    (directory / PROBLEMS_NAME).write_text(text, encoding="utf-8")
    return len(rows)


def load_problems(directory: Path) -> list[DealtProblem]:
    """Read what `save_problems` wrote.

    Raises:
        ArtifactError: the file is missing, or a line is malformed.
    """
    path = directory / PROBLEMS_NAME
    problems: list[DealtProblem] = []
    try:
        for line in filter(None, path.read_text(encoding="utf-8").split("\n")):
            row = json.loads(line)
            fields = row["problem"] | {"expressions": tuple(row["problem"]["expressions"])}
            problems.append(DealtProblem(WordProblem(**fields), row["split"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{path}: holds no word problems ({error}). The artifact was made for another "
            "environment, or is damaged: run ingest again"
        ) from error
    return problems

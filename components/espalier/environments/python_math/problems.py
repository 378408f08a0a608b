"""Word problems in the place of knowledge: a user's own files, dealt to splits by their wording."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from espalier.config import SplitsConfig
from espalier.environments.family import dealt_split
from espalier.environments.python_math.config import PythonMathConfig
from espalier.environments.python_math.gsm8k import WordProblem, read_word_problems
from espalier.knowledge.folding import folded_name
from espalier.records import ArtifactError, Split

PROBLEMS_NAME = "problems.jsonl"


@dataclass(frozen=True, slots=True)
class DealtProblem:
    """A problem and the split that it belongs to."""

    problem: WordProblem
    split: Split


def deal_problems(config: PythonMathConfig, splits: SplitsConfig) -> list[DealtProblem]:
    """The problems of the profile's files; none where it names none.

    A wording belongs to one split, whatever the seed and the rest of the file. Where the held-out
    problems have a file of their own, whatever is worded as one of them is not trained on.

    Raises:
        DataError: a file that is not in GSM8K's format, naming the line.
    """
    if config.problems is None:
        return []
    own = {
        folded_name(problem.question): problem for problem in read_word_problems(config.problems)
    }
    if config.heldout_problems is None:
        return [DealtProblem(problem, dealt_split(text, splits)) for text, problem in own.items()]
    heldout = {folded_name(p.question): p for p in read_word_problems(config.heldout_problems)}
    kept = {text: problem for text, problem in own.items() if text not in heldout}
    return [
        *(
            DealtProblem(problem, dealt_split(text, splits, heldout=False))
            for text, problem in kept.items()
        ),
        *(DealtProblem(problem, "heldout") for problem in heldout.values()),
    ]


def save_problems(problems: Iterable[DealtProblem], directory: Path) -> int:
    """Write them as JSON lines and return how many there were."""
    rows = [json.dumps(asdict(dealt), sort_keys=True, ensure_ascii=False) for dealt in problems]
    text = "".join(f"{row}\n" for row in rows)
    (directory / PROBLEMS_NAME).write_text(text, encoding="utf-8")
    return len(rows)


def load_problems(directory: Path) -> list[DealtProblem]:
    """Read what `save_problems` wrote.

    Raises:
        ArtifactError: the file is not there, or a line is no problem.
    """
    path = directory / PROBLEMS_NAME
    problems: list[DealtProblem] = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            fields = row["problem"] | {"expressions": tuple(row["problem"]["expressions"])}
            problems.append(DealtProblem(WordProblem(**fields), row["split"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{path}: holds no word problems ({error}). The artifact was made for another "
            "environment, or is damaged: run ingest again"
        ) from error
    return problems

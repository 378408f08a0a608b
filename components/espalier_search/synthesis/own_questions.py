"""A user's own questions, and a teacher that searches for the words of the question."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from espalier.environments.demonstrations import Rejected
from espalier.records import ArtifactError, Split, Task
from espalier.records.folding import is_named_in, phrases
from espalier.records.knowledge import Document
from espalier.records.trajectory import Trajectory
from espalier.rewards.answers import exact_match
from espalier_search.knowledge.search import SearchTool
from espalier_search.synthesis.search_wording import LOOK_UP
from espalier_search.synthesis.teacher import BAD_QUERY, TeacherEpisode

_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a an and are as at be by did do does for from had has have how in is it its many much name
        of on or that the their there these this to was were what when where which who whom whose
        why will with you your
        """,
    )
)
_MAX_QUERY_WORDS = 8


@dataclass(frozen=True, slots=True)
class OwnQuestion:
    """One row of a knowledge artifact's questions.jsonl."""

    question: str
    answers: tuple[str, ...]
    document_id: str
    split: Split


def read_own_questions(path: Path) -> list[OwnQuestion]:
    """The questions in the file; none if there is no file.

    Raises:
        ArtifactError: names the line that is not a question.
    """
    if not path.exists():
        return []
    questions = []
    # not splitlines: a text may contain other line ends than those of the file
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(filter(None, lines), start=1):
        try:
            row = json.loads(line)
            questions.append(
                OwnQuestion(
                    row["question"], tuple(row["answers"]), row["document_id"], row["split"]
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{path}, line {number}: not a question with answers, document_id and split "
                f"({error}). Run ingest again."
            ) from error
    return questions


class WordTeacher:
    """A teacher that searches for the question's content words, then for the rarer half of them."""

    def __init__(self, search: SearchTool, documents: Iterable[Document]) -> None:
        self._search = search
        self._frequencies: Counter[str] = Counter()
        for document in documents:
            self._frequencies.update(set(phrases(" ".join((document.title, *document.lines)))))

    def demonstrate(self, task: Task) -> Trajectory | Rejected:
        """The trajectory, if one of the observations shows an accepted answer."""
        episode = TeacherEpisode(task, self._search)
        for attempt, query in enumerate(self._queries(task.question)):
            if attempt:
                episode.detour = BAD_QUERY
            observation = episode.search(LOOK_UP, query)
            # its words stand in the observation, adjacent and in order
            gold = task.verifier.gold
            answer = next((one for one in gold if is_named_in(one, observation)), None)
            if answer is not None and exact_match(answer, gold):
                return episode.answered(answer)
        return Rejected("answer_not_shown")

    def _queries(self, question: str) -> list[str]:
        said = phrases(question)  # letters of Chinese with blanks between them find nothing
        content = [word for word in dict.fromkeys(said) if word not in _STOP_WORDS] or said
        frequency = self._frequencies
        by_rarity = sorted(content, key=lambda word: (frequency[word] == 0, frequency[word]))
        rare = set(by_rarity[: max(1, len(content) // 2)])
        first = " ".join(content[:_MAX_QUERY_WORDS])
        second = " ".join(word for word in content if word in rare)
        return [first] if second == first else [first, second]

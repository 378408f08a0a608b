"""Public sets of questions: HotpotQA, 2WikiMultihopQA, MuSiQue, Bamboogle, WebShaper.

They differ in the names of their keys, and in whether they include paragraphs to search:

    HotpotQA, 2Wiki   {_id, question, answer, type, level, context: [[title, [sentence, ...]], ...]}
    MuSiQue-Ans       {id, question, answer, answer_aliases, answerable,
                       paragraphs: [{title, paragraph_text, is_supporting}, ...]}
    Search-o1's form  {id, Question, answer: [accepted, ...], source}
    Bamboogle         {Question, Answer}
    WebShaper         {id, question, answer, formalization}
    IRCoT's texts     # METADATA: {"qid": ...}, "Wikipedia Title: ..." and a paragraph each, Q:, A:

Scores are exact match and F1 as in HotpotQA's `hotpot_evaluate_v1.py` (Yang et al. 2018,
arXiv:1809.09600), each the best over the accepted answers, as in MuSiQue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, BeforeValidator, Field, StringConstraints, ValidationError

from espalier.environments.benchmarks import BenchmarkRow, benchmark_tasks, read_rows
from espalier.environments.family import make_task
from espalier.records import DataError, Task
from espalier.records.knowledge import Document
from espalier.rewards.hotpot import hotpot_scores
from espalier_search.knowledge.sources import lines_of

_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Paragraph(BenchmarkRow):
    """A paragraph of MuSiQue."""

    title: _Text
    paragraph_text: _Text


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class _Row(BenchmarkRow):
    """A question of any of these sets."""

    question: _Text = Field(validation_alias=AliasChoices("question", "Question"))
    answer: Annotated[tuple[_Text, ...], BeforeValidator(_listed)] = Field(
        validation_alias=AliasChoices("answer", "Answer"), min_length=1
    )
    answer_aliases: tuple[_Text, ...] = ()
    row_id: str = Field(default="", validation_alias=AliasChoices("_id", "id"))
    kind: str = Field(default="", validation_alias=AliasChoices("type", "source", "tag"))
    level: str = ""
    answerable: bool = True
    context: tuple[tuple[_Text, tuple[str, ...]], ...] = ()
    paragraphs: tuple[_Paragraph, ...] = ()


def read_questions(path: Path) -> list[Task]:
    """Return the questions of a file.

    Raises:
        DataError: a row is malformed or has no answer; the message names it.
    """
    return benchmark_tasks(path, [_task(path, where, row) for where, row in _rows(path)])


def _rows(path: Path) -> list[tuple[str, _Row]]:
    return _text_rows(path) if path.suffix == ".txt" else read_rows(path, _Row)


def _text_rows(path: Path) -> list[tuple[str, _Row]]:
    """Return the demonstrations in a text of IRCoT (Trivedi et al. 2023, arXiv:2212.10509).

    Raises:
        DataError: a demonstration lacks a part; the message names it.
    """
    try:
        _, *blocks = path.read_text(encoding="utf-8").split("# METADATA: ")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a benchmark ({error})") from error
    found: list[tuple[str, _Row]] = []
    for number, block in enumerate(blocks, start=1):
        where = f"{path}, demonstration {number}"
        qid = re.match(r'\{"qid": "([^"]+)"\}\n', block)
        asked = re.search(r"^Q: (.+)\nA: .*So the answer is: (.+?)\.?\s*$", block, re.MULTILINE)
        if qid is None or asked is None:
            raise DataError(f'{where}: needs a qid, a line "Q:", and "A: ... So the answer is: X."')
        context = [
            (title, (text.strip(),))
            for title, text in re.findall(r"^Wikipedia Title: (.+)\n(.*)$", block, re.MULTILINE)
        ]
        given = {"id": qid[1], "question": asked[1], "answer": asked[2], "context": context}
        try:
            found.append((where, _Row.model_validate(given)))
        except ValidationError as error:
            raise DataError(f"{where}: {error.errors()[0]['msg']}") from error
    if not found:
        raise DataError(f'{path}: holds no demonstration that begins with "# METADATA: "')
    return found


def _task(path: Path, where: str, row: _Row) -> Task:
    if not row.answerable:
        raise DataError(
            f"{where}: a question without an answer. MuSiQue-Full is scored otherwise; give the "
            "file of MuSiQue-Ans"
        )
    groups = {"kind": row.kind, "level": row.level}
    return make_task(
        "search_qa",
        row.question,
        gold=tuple(dict.fromkeys((*row.answer, *row.answer_aliases))),
        split="heldout",
        source=path.name,
        key=f"{row.row_id}\t{row.question}",
        metadata={"extra": {"benchmark": {name: said for name, said in groups.items() if said}}},
    )


def read_paragraphs(path: Path) -> list[Document]:
    """Return the distinct paragraphs that the file includes, in order; there may be none."""
    found: dict[tuple[str, tuple[str, ...]], Document] = {}
    for _, row in _rows(path):
        for title, lines in _paragraphs_of(row):
            document = Document(f"{title}#{len(found)}", title, tuple(lines), "heldout")
            found.setdefault((title, document.lines), document)
    return list(found.values())


def _paragraphs_of(row: _Row) -> Iterable[tuple[str, Sequence[str]]]:
    for title, sentences in row.context:
        yield title, [line for sentence in sentences if (line := " ".join(sentence.split()))]
    for paragraph in row.paragraphs:
        yield paragraph.title, list(lines_of(paragraph.paragraph_text))


def answer_scores(answer: str | None, gold: Sequence[str]) -> dict[str, float]:
    """Return `em` and `f1` of an answer, 0-1, each the best over the accepted answers."""
    scores = [hotpot_scores(answer, accepted) for accepted in gold]
    return {"em": max(one.em for one in scores), "f1": max(one.f1 for one in scores)}

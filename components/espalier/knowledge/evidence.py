"""Which document answers a user's question, and so which split the question belongs to."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from espalier.config import SplitsConfig
from espalier.knowledge.documents import Document
from espalier.knowledge.folding import words
from espalier.knowledge.graph import Split
from espalier.knowledge.index import TextIndex
from espalier.knowledge.names import NameIndex
from espalier.knowledge.sources import Question
from espalier.knowledge.splits import deal
from espalier.records import KnowledgeError

_EVIDENCE_HITS = 5
_SHOWN_DROPPED = 20


@dataclass(frozen=True, slots=True)
class EvidencedQuestion:
    """A question with the document that its answer can be read in."""

    question: str
    answers: tuple[str, ...]
    document_id: str
    split: Split


@dataclass(frozen=True, slots=True)
class Evidence:
    """The questions that a search can answer, and those that it cannot."""

    questions: tuple[EvidencedQuestion, ...]
    dropped: tuple[str, ...]
    document_splits: Mapping[str, Split]
    """The split of every document that answers a question."""


def find_evidence(
    questions: Sequence[Question],
    documents: Sequence[Document],
    config: SplitsConfig,
    seed: int,
) -> Evidence:
    """Tie each question to its best hit that holds the answer, and deal the documents to splits.

    Raises:
        KnowledgeError: no question has evidence.
    """
    index = TextIndex.build(documents)
    found: dict[str, Document] = {}
    for question in questions:
        hits = (
            documents[hit.place] for hit in index.rank(words(question.question), _EVIDENCE_HITS)
        )
        for document in hits:
            if _holds(document, question.answers):
                found[question.question] = document
                break
    if questions and not found:
        raise KnowledgeError(
            f"none of {len(questions)} questions has its answer in one of the {_EVIDENCE_HITS} "
            "documents that match it best; check that knowledge.questions and knowledge.path "
            "belong together"
        )
    splits = _document_splits(list(found.values()), config, seed)
    kept = tuple(
        EvidencedQuestion(q.question, q.answers, doc.document_id, splits[doc.document_id])
        for q in questions
        if (doc := found.get(q.question))
    )
    dropped = tuple(q.question for q in questions if q.question not in found)
    return Evidence(kept, dropped, splits)


def save_evidence(evidence: Evidence, directory: Path) -> None:
    """Write questions.jsonl, and questions_dropped.json with the count and the first of them."""
    rows = (json.dumps(asdict(q), sort_keys=True, ensure_ascii=False) for q in evidence.questions)
    (directory / "questions.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    content = {
        "kept": len(evidence.questions),
        "without_evidence": len(evidence.dropped),
        "first_without_evidence": evidence.dropped[:_SHOWN_DROPPED],
    }
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
    (directory / "questions_dropped.json").write_text(text + "\n", encoding="utf-8")


def _holds(document: Document, answers: Sequence[str]) -> bool:
    index = NameIndex(answers)
    texts = (document.title, " ".join(document.lines))
    return any(next(index.found_in(text), None) is not None for text in texts)


def _document_splits(
    documents: Sequence[Document], config: SplitsConfig, seed: int
) -> dict[str, Split]:
    """Documents of entities keep their split; the others are dealt. A hub counts as training."""
    owned: dict[str, Split] = {d.document_id: d.split for d in documents if d.split != "hub"}
    free = sorted({d.document_id for d in documents} - owned.keys())
    dealt = deal([[[name] for name in free]], config, random.Random(f"documents-{seed}"))
    return {**owned, **dealt}

"""Writes a knowledge artifact: triples, documents, and one search index per view.

entities.parquet, relations.json, triples.parquet, documents.parquet
index/{train,dev,full}/         what is searched, without what a view hides
names.json                      names that no view can hide
questions.jsonl, questions_dropped.json       if the user gives questions
evidence.jsonl, extraction.json, run.json     if a model states triples
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from espalier.config import Profile, SplitsConfig
from espalier.environments.contract import View
from espalier.environments.text_index import TextIndex
from espalier.records import Draft, KnowledgeError, Tracker
from espalier.records.folding import NameIndex
from espalier.records.knowledge import Document, EntitySplit, KnowledgeGraph, save_documents
from espalier_search.knowledge.extraction import extract, save_extracted
from espalier_search.knowledge.folder import FILES_LEFT_OUT
from espalier_search.knowledge.geonames import load_geonames
from espalier_search.knowledge.search import documents_path, index_dir
from espalier_search.knowledge.sources import KnowledgeSource, SourceQuestion
from espalier_search.knowledge.splits import Splits, build_graph, deal, draw_splits
from espalier_search.knowledge.user_sources import load_own
from espalier_search.knowledge.views import VIEWS, forbidden_names, leaks, view_documents

_EVIDENCE_HITS = 5
_SHOWN_DROPPED = 20


@dataclass(frozen=True, slots=True)
class EvidencedQuestion:
    """A question and the document that contains its answer."""

    question: str
    answers: tuple[str, ...]
    document_id: str
    split: EntitySplit


@dataclass(frozen=True, slots=True)
class QuestionEvidence:
    """The user's questions that a search can answer, and those that it cannot."""

    questions: tuple[EvidencedQuestion, ...]
    dropped: Mapping[str, str]
    """Unused question -> reason."""
    document_splits: Mapping[str, EntitySplit]
    """The split of every document that answers a question."""


def find_evidence(
    questions: Sequence[SourceQuestion],
    documents: Sequence[Document],
    config: SplitsConfig,
    seed: int,
) -> QuestionEvidence:
    """Find the best hit that contains each question's answer, and split the documents.

    Raises:
        KnowledgeError: no question has evidence.
    """
    index = TextIndex.build(documents)
    found: dict[str, Document] = {}
    for question in questions:
        hits = (documents[hit.place] for hit in index.rank(question.question, _EVIDENCE_HITS))
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

    # the split of a document is its entity's, or a drawn one for a hub or no entity
    splits: dict[str, EntitySplit] = {
        document.document_id: document.split
        for document in found.values()
        if document.split != "hub"
    }
    free = sorted({document.document_id for document in found.values()} - splits.keys())
    splits |= deal([[[name] for name in free]], config, random.Random(f"documents-{seed}"))

    kept = tuple(
        EvidencedQuestion(q.question, q.answers, doc.document_id, splits[doc.document_id])
        for q in questions
        if (doc := found.get(q.question))
    )
    dropped: dict[str, str] = {}
    for question in questions:
        if question.question not in found:
            is_held = any(_holds(document, question.answers) for document in documents)
            dropped[question.question] = (
                "answer_only_in_documents_of_other_words" if is_held else "answer_in_no_document"
            )
    return QuestionEvidence(kept, dropped, splits)


def save_evidence(evidence: QuestionEvidence, directory: Path) -> None:
    """Write questions.jsonl, and questions_dropped.json with the count and first examples."""
    rows = (json.dumps(asdict(q), sort_keys=True, ensure_ascii=False) for q in evidence.questions)
    (directory / "questions.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    content = {
        "kept": len(evidence.questions),
        "without_evidence": len(evidence.dropped),
        "reasons": dict(Counter(evidence.dropped.values())),
        "first_without_evidence": list(evidence.dropped)[:_SHOWN_DROPPED],
    }
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
    (directory / "questions_dropped.json").write_text(text + "\n", encoding="utf-8")


def _holds(document: Document, answers: Sequence[str]) -> bool:
    index = NameIndex(answers)
    texts = (document.title, " ".join(document.lines))
    return any(next(index.found_in(text), None) is not None for text in texts)


def write_knowledge(profile: Profile, draft: Draft, tracker: Tracker) -> None:
    """Read the source configured by `[knowledge]`, and write the artifact into `draft`.

    Raises:
        KnowledgeError: the source cannot be read or is empty, or a view would leak a name.
        EngineError: the model that states triples cannot be used.
    """
    config = profile.knowledge
    source = load_geonames(config) if config.source == "geonames" else load_own(config)
    extraction = config.extraction
    extracted = extract(source, extraction, tracker) if extraction else None
    splits = draw_splits(source, profile.splits, profile.seed)
    graph = build_graph(source, splits)
    document_splits: Mapping[str, EntitySplit] = {}
    graph.save(draft.path)
    if extracted:
        draft.rows["mentions"] = save_extracted(extracted, draft.path)
    if source.questions:
        evidence = _evidence(source, graph, profile)
        save_evidence(evidence, draft.path)
        document_splits = evidence.document_splits
        draft.rows["questions"] = len(evidence.questions)
        draft.rows["questions_dropped"] = len(evidence.dropped)
    for view in VIEWS:
        documents = _checked_view(
            source,
            graph,
            splits,
            document_splits,
            view,
            triple_lines=config.triple_lines,
        )
        index = index_dir(draft.path, view)
        index.mkdir(parents=True, exist_ok=True)
        save_documents(documents, documents_path(draft.path, view))
        TextIndex.build(documents).save(index)
        draft.rows[f"{view}_documents"] = len(documents)
    _write_names(draft, splits)
    (draft.path / "attribution.txt").write_text(source.attribution, encoding="utf-8")
    _count(draft, graph)
    draft.rows |= source.left_out
    meanings = _UNUSED | (_OF_DOCUMENTS_ALONE if config.asks_documents_alone else {})
    for line in (*source.notes, *_unused(draft.rows, meanings)):
        tracker.note(line)
    tracker.params({"knowledge.source": config.source, **draft.rows})


_UNUSED = {
    "questions_dropped": "question pairs are not used, as no document that their words find holds "
    "the answer: see questions_dropped.json, and write answers as the documents spell them",
    "questions_contradicted": "rows give a second answer to a question, and the first is used: "
    'where both are right, write one row with "answer": ["first", "second"]',
    "questions_repeated": "question pairs are repeated, and used once",
    "sentences_not_asked_about": "sentences are not asked about: they do not name the document's "
    "title, or hold no name, year or number beside it that the document says once",
    "triples_repeated": "triples are repeated, and used once",
    "linked_folders": "links to folders are not followed: move what they hold into the folder",
    "links_out_of_the_folder": "links lead out of the folder, and are not followed",
}
"""Row count of the manifest -> what it means for the user."""
_OF_DOCUMENTS_ALONE = {
    "questions_dropped": "questions made of the documents are not asked, as a search with their "
    "words finds other documents: see questions_dropped.json",
}


def _unused(rows: Mapping[str, int], meanings: Mapping[str, str]) -> list[str]:
    told = [f"{rows[name]} {text}" for name, text in meanings.items() if rows.get(name)]
    endings = [name for name in rows if name.startswith(FILES_LEFT_OUT)]
    if endings:
        counts = ", ".join(f"{rows[name]} {name.removeprefix(FILES_LEFT_OUT)}" for name in endings)
        told.append(f"files of other kinds are left out, by ending: {counts}")
    return told


def _evidence(source: KnowledgeSource, graph: KnowledgeGraph, profile: Profile) -> QuestionEvidence:
    lines = profile.knowledge.triple_lines
    documents = view_documents(source, graph, {}, "full", frozenset(), triple_lines=lines)
    return find_evidence(source.questions, documents, profile.splits, profile.seed)


def _checked_view(
    source: KnowledgeSource,
    graph: KnowledgeGraph,
    splits: Splits,
    document_splits: Mapping[str, EntitySplit],
    view: View,
    *,
    triple_lines: bool,
) -> list[Document]:
    forbidden = forbidden_names(graph, view, splits.common_names)
    documents = view_documents(
        source, graph, document_splits, view, forbidden, triple_lines=triple_lines
    )
    if found := leaks(documents, forbidden):
        raise KnowledgeError(
            f"the {view} view shows {len(found)} names that it must hide, first: {found[0].name!r} "
            f"in {found[0].text!r} of {found[0].document_id}. Rename one of the two entities."
        )
    return documents


def _write_names(draft: Draft, splits: Splits) -> None:
    """Write the names that no view hides: words of questions, or parts of many names."""
    content = {"common_names": sorted(splits.common_names), "moved_for_their_name": splits.moved}
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
    (draft.path / "names.json").write_text(text + "\n", encoding="utf-8")
    draft.rows["common_names"] = len(splits.common_names)
    draft.rows["moved_entities"] = splits.moved


def _count(draft: Draft, graph: KnowledgeGraph) -> None:
    entities = list(graph.entities.values())
    draft.rows["entities"] = len(entities)
    draft.rows["askable_entities"] = sum(entity.askable for entity in entities)
    draft.rows["relations"] = len(graph.relations)
    draft.rows["triples"] = sum(1 for _ in graph.triples())

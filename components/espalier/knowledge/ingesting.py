"""Writing a knowledge artifact: triples, documents and one search index for each view.

entities.parquet, relations.json, triples.parquet, documents.parquet
index/{train,dev,full}/         what is searched, without what a view hides
names.json                      names that no view can keep secret
questions.jsonl, questions_dropped.json       of the user's own questions
evidence.jsonl, extraction.json, run.json     of triples that a model states
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from espalier.config import KnowledgeConfig, Profile
from espalier.knowledge.asking import build_graph
from espalier.knowledge.documents import Document, save_documents
from espalier.knowledge.evidence import Evidence, find_evidence, save_evidence
from espalier.knowledge.extraction import extract, save_extracted
from espalier.knowledge.graph import KnowledgeGraph, Split
from espalier.knowledge.index import TextIndex
from espalier.knowledge.names import leaks
from espalier.knowledge.search import documents_path, index_dir
from espalier.knowledge.sources import Source
from espalier.knowledge.sources.geonames import load_geonames
from espalier.knowledge.sources.own import load_own
from espalier.knowledge.splits import Splits, draw_splits
from espalier.knowledge.views import VIEWS, View, forbidden_names, view_documents
from espalier.records import Draft, KnowledgeError, Tracker


def write_knowledge(profile: Profile, draft: Draft, tracker: Tracker) -> None:
    """Read the source that `[knowledge]` names, and write the artifact into `draft`.

    Raises:
        KnowledgeError: the source cannot be read, holds nothing, or a view would leak a name.
        EngineError: a model is to state triples, and its server cannot be used.
    """
    source = _load(profile.knowledge)
    extraction = profile.knowledge.extraction
    extracted = extract(source, extraction, tracker) if extraction else None
    splits = draw_splits(source, profile.splits, profile.seed)
    graph = build_graph(source, splits)
    document_splits: Mapping[str, Split] = {}
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
        documents = _checked_view(source, graph, splits, document_splits, view)
        _write_view(draft.path, view, documents)
        draft.rows[f"{view}_documents"] = len(documents)
    _write_names(draft, splits)
    (draft.path / "attribution.txt").write_text(source.attribution, encoding="utf-8")
    _count(draft, graph)
    draft.rows |= source.left_out
    tracker.params({"knowledge.source": profile.knowledge.source, **draft.rows})


def _load(config: KnowledgeConfig) -> Source:
    return load_geonames(config) if config.source == "geonames" else load_own(config)


def _evidence(source: Source, graph: KnowledgeGraph, profile: Profile) -> Evidence:
    documents = view_documents(source, graph, {}, "full", frozenset())
    return find_evidence(source.questions, documents, profile.splits, profile.seed)


def _checked_view(
    source: Source,
    graph: KnowledgeGraph,
    splits: Splits,
    document_splits: Mapping[str, Split],
    view: View,
) -> list[Document]:
    forbidden = forbidden_names(graph, view, splits.common_names)
    documents = view_documents(source, graph, document_splits, view, forbidden)
    if found := leaks(documents, forbidden):
        raise KnowledgeError(
            f"the {view} view shows {len(found)} names that it must hide, first: {found[0].name!r} "
            f"in {found[0].text!r} of {found[0].document_id}. Rename one of the two entities."
        )
    return documents


def _write_view(directory: Path, view: View, documents: list[Document]) -> None:
    index_dir(directory, view).mkdir(parents=True, exist_ok=True)
    save_documents(documents, documents_path(directory, view))
    TextIndex.build(documents).save(index_dir(directory, view))


def _write_names(draft: Draft, splits: Splits) -> None:
    """Say which names no view hides: words of questions, or parts of many names."""
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

"""Documents of the graph, and the views that hide what a split must not show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from espalier.environments.contract import View
from espalier.records.folding import NameIndex, folded_name
from espalier.records.knowledge import Document, Entity, EntitySplit, KnowledgeGraph
from espalier_search.knowledge.sources import KnowledgeSource

VIEWS: tuple[View, ...] = ("train", "dev", "full")
HIDDEN_SPLITS: Mapping[View, frozenset[EntitySplit]] = {
    "train": frozenset({"dev", "heldout"}),
    "dev": frozenset({"heldout"}),
    "full": frozenset(),
}


class Leak(NamedTuple):
    """A forbidden name found in a document."""

    document_id: str
    text: str
    name: str


def forbidden_names(
    graph: KnowledgeGraph, view: View, common_names: frozenset[str]
) -> frozenset[str]:
    """Return the folded names of the view's hidden entities, without common names."""
    hidden = HIDDEN_SPLITS[view]
    names = {folded_name(e.name) for e in graph.entities.values() if e.split in hidden}
    return frozenset(names - common_names - {""})


_SECRECY: tuple[EntitySplit, ...] = ("heldout", "dev", "train", "hub")
"""The most restricted split first: a document has the first one that an owner of it has."""


def view_documents(
    source: KnowledgeSource,
    graph: KnowledgeGraph,
    document_splits: Mapping[str, EntitySplit],
    view: View,
    forbidden: frozenset[str],
    *,
    triple_lines: bool = False,
) -> list[Document]:
    """Return the documents of a view, without hidden documents, objects or lines.

    Triples are lines of the documents that the source has no text for; with `triple_lines` also of
    the user's texts.
    `document_splits` holds the split of documents that belong to no entity; a document without an
    owner and without an entry there is in every view.
    """
    hidden = HIDDEN_SPLITS[view]
    index = NameIndex(forbidden)
    owners: dict[str, list[Entity]] = defaultdict(list)
    for entity in graph.entities.values():
        if entity.document_id:
            owners[entity.document_id].append(entity)
    texts = {document.document_id: document for document in source.documents}
    facts = {entity.entity_id: entity.facts for entity in source.entities}
    relation_lines = _relation_lines(graph, hidden)
    documents = []
    for document_id in dict.fromkeys((*texts, *owners)):
        owned_by = owners.get(document_id, [])
        splits: set[EntitySplit] = {entity.split for entity in owned_by}
        split: EntitySplit = document_splits.get(document_id, "hub")
        if splits:
            split = next(one for one in _SECRECY if one in splits)
        text = texts.get(document_id)
        title = text.title if text else owned_by[0].name
        lines = list(text.lines) if text else []
        for entity in owned_by if text is None or triple_lines else ():
            lines += [*relation_lines.get(entity.entity_id, ()), *facts[entity.entity_id]]
        if split in hidden or _names_any(index, title):
            continue
        if lines := [line for line in lines if not _names_any(index, line)]:
            documents.append(Document(document_id, title, tuple(lines), split))
    return documents


def without_triple_lines(documents: Iterable[Document], graph: KnowledgeGraph) -> list[Document]:
    """Return documents of the full view as the user wrote them.

    The lines of triples that `triple_lines` added to texts are left out, and equal lines of the
    user's own stay. Documents that consist of such lines keep them.
    """
    relation_lines = _relation_lines(graph, frozenset())
    added: dict[str, list[str]] = defaultdict(list)
    for entity in graph.entities.values():
        if entity.document_id != entity.entity_id:
            added[entity.document_id] += relation_lines.get(entity.entity_id, ())
    written = []
    for document in documents:
        lines = list(document.lines)[::-1]  # an added line stands behind the user's own
        for line in added[document.document_id]:
            if line in lines:
                lines.remove(line)
        written.append(replace(document, lines=tuple(lines[::-1])))
    return written


def leaks(documents: Iterable[Document], forbidden_names: Iterable[str]) -> list[Leak]:
    """Return every occurrence of a forbidden name in `documents`, as whole words."""
    index = NameIndex(forbidden_names)
    return [
        Leak(document.document_id, text, name)
        for document in documents
        for text in (document.title, *document.lines)
        for name in index.found_in(text)
    ]


def _relation_lines(graph: KnowledgeGraph, hidden: frozenset[EntitySplit]) -> dict[str, list[str]]:
    """Return subject id -> lines "label: object; object", without objects of hidden splits."""
    names: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for triple in graph.triples():
        target = graph.entities[triple.object]
        if target.split not in hidden:
            label = graph.relations[triple.relation].label
            names[triple.subject][label].append(target.name)
    return {
        subject: [f"{label}: {'; '.join(objects)}" for label, objects in by_label.items()]
        for subject, by_label in names.items()
    }


def _names_any(index: NameIndex, text: str) -> bool:
    return next(index.found_in(text), None) is not None

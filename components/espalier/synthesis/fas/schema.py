"""What the embedded teacher knows of the knowledge base: names, lines, and which kind has which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from espalier.knowledge import Document, KnowledgeGraph, Relation
from espalier.knowledge.folding import folded_name
from espalier.knowledge.graph import Split

VISIBLE: frozenset[Split] = frozenset({"train", "hub"})
"""Splits whose names a text for training may say."""

Facts = Mapping[str, Sequence[str]]
"""Label of a line -> what it lists."""


class Schema:
    """Relations, and the names, kinds and facts of the documents that training may read."""

    def __init__(self, graph: KnowledgeGraph, documents: Iterable[Document]) -> None:
        self.relations = tuple(graph.relations.values())
        self._by_label = {(r.subject_kind, r.label): r for r in self.relations}
        self._kinds: dict[str, set[str]] = defaultdict(set)
        self._facts: dict[tuple[str, str], Facts] = {}
        self._names: list[str] = []
        kind_of_document: dict[str, str] = {}
        for entity in graph.entities.values():
            if entity.split in VISIBLE:
                self._kinds[folded_name(entity.name)].add(entity.kind)
            if entity.document_id:
                kind_of_document[entity.document_id] = entity.kind
        labels: dict[str, None] = {}
        for document in documents:
            facts = facts_of(document.lines)
            labels.update(dict.fromkeys(facts))
            kind = kind_of_document.get(document.document_id, "")
            self._facts.setdefault((folded_name(document.title), kind), facts)
            self._kinds[folded_name(document.title)].add(kind)
            self._names.append(document.title)
        related = {relation.label for relation in self.relations}
        self.plain_labels = tuple(label for label in labels if label not in related)
        """Labels of lines that lead to no other document, such as population."""
        self.labels = tuple(dict.fromkeys((*sorted(related), *self.plain_labels)))

    @property
    def names(self) -> Sequence[str]:
        """Titles of all documents."""
        return self._names

    def kinds(self, name: str) -> frozenset[str]:
        """Kinds of whatever bears the name; empty for an unknown one."""
        return frozenset(self._kinds.get(folded_name(name), ()))

    def relation(self, kind: str, label: str) -> Relation | None:
        """The relation that a line `label` of a document of `kind` states."""
        return self._by_label.get((kind, label))

    def facts(self, name: str, kind: str) -> Facts:
        """What the document of that name and kind states; empty where there is none."""
        return self._facts.get((folded_name(name), kind), {})


def facts_of(lines: Iterable[str]) -> Facts:
    """The lines that read "label: value; value"."""
    split = (line.partition(": ") for line in lines)
    return {label: values.split("; ") for label, _, values in split if label and values}

"""Which entities can stand in a question or be its answer, and the graph that says so."""

from __future__ import annotations

import re
from collections import Counter

from espalier.knowledge.folding import folded_name
from espalier.knowledge.graph import Entity, KnowledgeGraph
from espalier.knowledge.sources import Source
from espalier.knowledge.splits import Splits

MAX_NAME_WORDS = 4
MAX_NAME_CHARACTERS = 24
_MIN_NAME_CHARACTERS = 3
_SPEAKABLE = re.compile(r"(?:[^\W\d_]|[ \-'\u2019./_])+")


def build_graph(source: Source, splits: Splits) -> KnowledgeGraph:
    """The graph of `source`, with the split and askability of every entity."""
    bearers = Counter(folded_name(entity.name) for entity in source.entities)
    document_ids = source.entity_documents
    entities = []
    for entity in source.entities:
        folded = folded_name(entity.name)
        unique = bearers[folded] == 1 and folded not in splits.common_names
        split = splits.by_entity[entity.entity_id]
        own_document = entity.entity_id if entity.has_document else ""
        entities.append(
            Entity(
                entity_id=entity.entity_id,
                name=entity.name,
                kind=entity.kind,
                hub=split == "hub",
                split=split,
                askable=unique and is_speakable(entity.name),
                document_id=document_ids.get(entity.entity_id, own_document),
            )
        )
    return KnowledgeGraph(entities, source.relations, source.triples)


def is_speakable(name: str) -> bool:
    """Whether a name is short and of letters, so that a question can say it."""
    return (
        _MIN_NAME_CHARACTERS <= len(name) <= MAX_NAME_CHARACTERS
        and len(name.split()) <= MAX_NAME_WORDS
        and _SPEAKABLE.fullmatch(name) is not None
    )

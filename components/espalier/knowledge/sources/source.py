"""What every source hands over, before splits are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field

from espalier.knowledge.graph import Relation, Triple


@dataclass(frozen=True, slots=True)
class SourceEntity:
    """An entity without its split."""

    entity_id: str
    name: str
    kind: str
    hub: bool = False
    """Shared by every split."""
    region: str = ""
    """Id of the entity whose split this one follows; empty where it draws its own."""
    has_document: bool = True
    facts: tuple[str, ...] = ()
    """Lines of its document that are no relation, such as "population: 20,430"."""


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A text as the user wrote it, cut into lines."""

    document_id: str
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the user's own, with every answer that counts as right."""

    question: str
    answers: tuple[str, ...]


@dataclass(slots=True)
class Source:
    """Everything a source knows."""

    attribution: str
    entities: list[SourceEntity] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    triples: list[Triple] = field(default_factory=list)
    documents: list[SourceDocument] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    region_kinds: frozenset[str] = frozenset()
    """Kinds of entities that are dealt to splits with all that lies in them."""
    pinned: frozenset[str] = frozenset()
    """Ids of entities that are always in the training split."""
    public: frozenset[str] = frozenset()
    """Ids of hubs that every split shows whatever their name contains (continents)."""
    entity_documents: dict[str, str] = field(default_factory=dict)
    """Entity id -> id of the user's document about it."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Rows of the user's that are not used: what and why -> number, such as triples_repeated."""

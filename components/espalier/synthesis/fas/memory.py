"""An entity-anchored memory: entity -> dated claims, made from documents."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from espalier.knowledge import Document
from espalier.knowledge.folding import folded_name
from espalier.synthesis.fas.calls import Claim

_DATE = re.compile(r"\b(1[0-9]{3}|20[0-9]{2})(?:-(0[1-9]|1[0-2])(?:-(0[1-9]|[12]\d|3[01]))?)?\b")

_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class Memory:
    """What is known of one entity, oldest claim first; undated claims come before all."""

    entity: str
    claims: list[Claim] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    """Ids of the documents that the claims were drawn from."""


class Memories:
    """Memories by folded name, in the order in which their entities were met."""

    def __init__(self) -> None:
        self._by_name: dict[str, Memory] = {}

    def add(self, document: Document, claims: Iterable[Claim]) -> None:
        """File the claims of a document under their entities; a repeated claim is one."""
        for claim in claims:
            memory = self._by_name.setdefault(folded_name(claim.entity), Memory(claim.entity))
            if all(claim.text != known.text for known in memory.claims):
                memory.claims.append(claim)
            if document.document_id not in memory.sources:
                memory.sources.append(document.document_id)

    def all(self) -> list[Memory]:
        """Every memory, its claims in the order of their dates."""
        for memory in self._by_name.values():
            memory.claims.sort(key=lambda claim: claim.date)
        return list(self._by_name.values())


def unsupported(claim: Claim, document: Document) -> bool:
    """Whether the document lacks the entity's name, the year, or a number that the claim states."""
    text = " ".join((document.title, *document.lines))
    if f" {folded_name(claim.entity)} " not in f" {folded_name(text)} ":
        return True
    return not set(_NUMBER.findall(f"{claim.date[:4]} {claim.text}")) <= set(_NUMBER.findall(text))


def date_in(line: str) -> str:
    """The first date that a line states, as 1843 or 1843-07-02; empty where there is none."""
    found = _DATE.search(line)
    return found[0] if found else ""

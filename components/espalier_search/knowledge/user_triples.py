"""The user's triples: entities, relations and phrasings from rows of JSON lines."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from espalier.records import KnowledgeError
from espalier.records.folding import NameIndex, folded_name, have_like_accents, is_number
from espalier.records.knowledge import Relation, Triple
from espalier_search.knowledge.phrasing import UNTYPED, default_phrasings
from espalier_search.knowledge.sources import (
    JsonLine,
    KnowledgeSource,
    SourceDocument,
    SourceEntity,
)

_YEAR_DIGITS = 4
_MIN_HUB_SUBJECTS = 3
"""An object with this many subjects that is never a subject itself becomes a hub of all splits."""

_SIGN_APART = re.compile(r"\D | \D")
_SHOWN = 5
"""Examples in a note."""


class _TripleEnd(NamedTuple):
    kind: str
    folded: str

    @property
    def entity_id(self) -> str:
        kind = self.kind.replace(":", "%3A")  # of a:b and c no other id than of a and b:c
        return f"{kind}:{self.folded}"


class _TripleRow(NamedTuple):
    subject: _TripleEnd
    relation: str
    object: _TripleEnd


def add_triples(source: KnowledgeSource, lines: Iterable[JsonLine]) -> list[Triple]:
    """Add entities, relations and triples to `source`, and link entities to their documents.

    Of documents with one title an entity has the one that names most of what is said of it.

    Returns:
        The triple of every line, in order; equal lines have equal triples.
    """
    spellings: dict[_TripleEnd, list[str]] = defaultdict(list)
    rows = _rows(list(lines), spellings)
    names = _relation_names(rows)
    stated = [
        Triple(row.subject.entity_id, names[row.relation, row.subject.kind, row.object.kind],
               row.object.entity_id)
        for row in rows
    ]  # fmt: skip
    source.triples = list(dict.fromkeys(stated))
    source.relations = _relations(names, source.triples)
    titled: dict[str, list[SourceDocument]] = defaultdict(list)
    for document in source.documents:
        titled[folded_name(document.title)].append(document)
    subjects_of: dict[_TripleEnd, list[_TripleEnd]] = defaultdict(list)
    objects_of: dict[_TripleEnd, list[str]] = defaultdict(list)
    for row in rows:
        subjects_of[row.object].append(row.subject)
        objects_of[row.subject].append(spellings[row.object][0])
    subjects = {row.subject for row in rows}
    for end, [name, *_] in spellings.items():
        users = [] if end in subjects else list(dict.fromkeys(subjects_of[end]))
        # a number is not a name that a split could hide
        is_value = is_number(end.folded) and end not in subjects
        is_hub = is_value or len(users) >= _MIN_HUB_SUBJECTS
        region = users[0].entity_id if users and not is_hub else ""
        if end.folded in titled:
            chosen = _telling(titled[end.folded], objects_of[end])
            source.entity_documents[end.entity_id] = chosen.document_id
        source.entities.append(
            SourceEntity(
                end.entity_id, name, end.kind, hub=is_hub, region=region,
                has_document=end in subjects, of_user=True,
            )
        )  # fmt: skip
    merged = [
        f"{first!r} and {other!r}"
        for first, *others in spellings.values()
        for other in dict.fromkeys(others)
        if not have_like_accents(first, other)
    ]
    if merged:
        source.notes.append(
            f"{len(merged)} pairs of names are one entity each, as only their accents differ: "
            f"{', '.join(merged[:_SHOWN])}. Where they are two, add a word that tells them apart"
        )
    shared = [found for end in spellings if len(found := titled.get(end.folded, [])) > 1]
    if shared:
        titles = ", ".join(repr(found[0].title) for found in shared[:_SHOWN])
        source.notes.append(
            f"{len(shared)} entities have several documents, of which each uses the one that names "
            f"most of its triples' objects: {titles}"
        )
    return stated


def _telling(documents: Sequence[SourceDocument], objects: Sequence[str]) -> SourceDocument:
    """Return the document that names the most objects; of several such, the first."""
    if len(documents) == 1:
        return documents[0]
    index = NameIndex(objects)
    return max(documents, key=lambda one: len(set(index.found_in("\n".join(one.lines)))))


def _rows(lines: list[JsonLine], spellings: dict[_TripleEnd, list[str]]) -> list[_TripleRow]:
    """Return rows with typed ends; a type given in one row applies to rows that give none."""
    types: dict[str, str] = {}
    for line in lines:
        for end in ("subject", "object"):
            if f"{end}_type" in line.row:
                types.setdefault(_folded(line, end), line.text(f"{end}_type"))
    rows = []
    for line in lines:
        ends = []
        for end in ("subject", "object"):
            folded = _folded(line, end)
            given = line.text(f"{end}_type") if f"{end}_type" in line.row else None
            ends.append(_TripleEnd(given or types.get(folded) or _kind_of(folded), folded))
            spellings[ends[-1]].append(line.text(end))
        rows.append(_TripleRow(ends[0], line.text("relation"), ends[1]))
    return rows


def _kind_of(folded: str) -> str:
    """Return the kind of an entity for which no row gives a type."""
    if _SIGN_APART.search(folded) or not is_number(folded):  # $ 5 is no bare number
        return UNTYPED
    is_year = len(folded) == _YEAR_DIGITS and folded.isdecimal() and folded[0] in "12"
    return "year" if is_year else "number"


def _folded(line: JsonLine, end: str) -> str:
    if folded := folded_name(line.text(end)):
        return folded
    raise KnowledgeError(
        f"{line.place}: {end!r} is {line.row[end]!r}, which holds no letter, digit or symbol"
    )


def _relation_names(rows: list[_TripleRow]) -> dict[tuple[str, str, str], str]:
    """Return (relation, subject kind, object kind) -> name; other kinds get another name."""
    names: dict[tuple[str, str, str], str] = {}
    taken: set[str] = set()
    for row in rows:
        key = (row.relation, row.subject.kind, row.object.kind)
        if key not in names:
            kinds = f"{row.relation} ({row.subject.kind} to {row.object.kind})"
            names[key] = kinds if row.relation in taken else row.relation
            taken.add(names[key])
    return names


def _relations(names: dict[tuple[str, str, str], str], triples: list[Triple]) -> list[Relation]:
    num_objects = Counter((triple.relation, triple.subject) for triple in triples)
    plural = {relation for (relation, _), count in num_objects.items() if count > 1}
    relations = []
    for (relation, subject_kind, object_kind), name in names.items():
        label = " ".join(relation.replace("_", " ").split())
        functional = name not in plural
        phrasings = default_phrasings(label, object_kind, functional=functional)
        relations.append(Relation(name, label, subject_kind, object_kind, functional, phrasings))
    return relations

"""Whether a statement of a model is proven by the document that it was made about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from espalier.config import RelationConfig
from espalier.config.knowledge import folded_relation
from espalier.knowledge.extraction.calls import Statement
from espalier.knowledge.extraction.chunks import Chunk
from espalier.knowledge.extraction.spelling import EvenedText, Span, as_named, as_quoted
from espalier.knowledge.folding import folded_name, words

Fault = Literal[
    "evidence_not_in_document",
    "subject_not_in_evidence",
    "object_not_in_evidence",
    "no_name",
    "subject_is_object",
    "unknown_relation",
]
"""Why a statement is not believed; the first of these, in this order, is counted."""

_MAX_NAME_WORDS = 8
_MAX_NAME_CHARACTERS = 80
_NAMELESS = frozenset(
    {"a", "an", "he", "her", "hers", "herself", "him", "himself", "his", "i", "it", "its", "itself",
     "me", "my", "one", "our", "she", "that", "the", "their", "them", "these", "they", "this",
     "those", "us", "we", "what", "which", "who", "whom", "whose", "you", "your"}
)  # fmt: skip
"""Words that point at something without naming it: made of these alone, nothing is a name."""
_OPEN_RELATION = re.compile(r"[^\W\d_]\w*")
_MAX_RELATION_WORDS = 5
_MAX_RELATION_CHARACTERS = 40


class Mention(NamedTuple):
    """A triple and where a document states it; the names are spelt as they stand there."""

    subject: str
    relation: str
    object: str
    document_id: str
    span: Span
    """Of the quotation, in the characters of the document's text."""
    evidence: str

    @property
    def folded(self) -> tuple[str, str, str]:
        """What makes two mentions the same triple."""
        return folded_name(self.subject), self.relation, folded_name(self.object)


class Checker:
    """Judges the statements about one chunk."""

    def __init__(self, chunk: Chunk, relations: Sequence[RelationConfig]) -> None:
        self._chunk = chunk
        self._text = EvenedText(chunk.text, as_quoted)
        self._relations = {folded_relation(relation.name): relation.name for relation in relations}

    def mention(self, statement: Statement) -> Mention | Fault:
        """The statement in the document's own words, or why it is not believed."""
        quoted = self._text.find(statement.evidence)
        if quoted is None:
            return "evidence_not_in_document"
        evidence = quoted.of(self._chunk.text)
        named = EvenedText(evidence, as_named)
        subject, object_ = named.find(statement.subject), named.find(statement.object)
        if subject is None:
            return "subject_not_in_evidence"
        if object_ is None:
            return "object_not_in_evidence"
        names = [" ".join(span.of(evidence).split()) for span in (subject, object_)]
        if not all(_is_name(name) for name in names):
            return "no_name"
        if folded_name(names[0]) == folded_name(names[1]):
            return "subject_is_object"
        relation = self._relation(statement.relation)
        if not relation:
            return "unknown_relation"
        start = self._chunk.start
        span = Span(start + quoted.start, start + quoted.end)
        return Mention(names[0], relation, names[1], self._chunk.document_id, span, evidence)

    def _relation(self, stated: str) -> str:
        """The relation's name in the profile, or evened out where any may be stated; else empty."""
        folded = folded_relation(stated)
        if self._relations:
            return self._relations.get(folded, "")
        is_name = (
            _OPEN_RELATION.fullmatch(folded)
            and len(folded) <= _MAX_RELATION_CHARACTERS
            and folded.count("_") < _MAX_RELATION_WORDS
        )
        return folded if is_name else ""


def _is_name(text: str) -> bool:
    folded = words(text)
    return (
        0 < len(folded) <= _MAX_NAME_WORDS
        and len(text) <= _MAX_NAME_CHARACTERS
        and not _NAMELESS.issuperset(folded)
    )

"""Triples that a model states about part of a document, and whether the document proves them.

A statement is kept if its quotation occurs in the document, its subject and object occur in the
quotation, and its relation is allowed. Names are copied from the document, so that the only words
of the model that are kept are names of relations, where these are open.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, StringConstraints

from espalier.completions import Request, StrictModel
from espalier.config import RelationConfig
from espalier.config.knowledge import folded_relation
from espalier.records.folding import NameEdges, fold_accents, folded_name, phrases
from espalier_search.knowledge.sources import SourceDocument

_MAX_LINE_CHARACTERS = 1000
"""Lines have at most thirty words: a longer text is not prose, and could exceed any context."""


class Chunk(NamedTuple):
    """Consecutive lines of one document.

    The text of a document is its lines joined by line breaks; `start` is an offset in its
    characters.
    """

    document_id: str
    title: str
    start: int
    text: str


def chunks_of(document: SourceDocument, max_words: int) -> Iterator[Chunk]:
    """Pack all readable lines, in order, into as few chunks as possible."""
    start = end = num_words = 0
    lines: list[str] = []
    for line in document.lines:
        line_words = len(line.split())
        fits = num_words + line_words <= max_words and is_readable(line)
        if lines and not fits:
            yield Chunk(document.document_id, document.title, start, "\n".join(lines))
            lines, num_words = [], 0
        if is_readable(line):
            start = start if lines else end
            lines.append(line)
            num_words += line_words
        end += len(line) + 1
    if lines:
        yield Chunk(document.document_id, document.title, start, "\n".join(lines))


def is_readable(line: str) -> bool:
    """Return whether a line is short enough for prose."""
    return len(line) <= _MAX_LINE_CHARACTERS


_Stated = Annotated[str, StringConstraints(max_length=2000)]
"""Text of any kind: each statement is judged separately, so that a bad one does not spoil the
others."""


class RequestedRelation(StrictModel):
    """A relation that may be stated."""

    name: str
    subject_type: str
    object_type: str


class ChunkInput(StrictModel):
    """A piece of a document and the wanted relations; if none are given, all are wanted."""

    title: str
    text: str
    relations: tuple[RequestedRelation, ...]


class Statement(StrictModel):
    """A triple, and the words of the document that say so."""

    subject: _Stated
    relation: _Stated
    object: _Stated
    evidence: _Stated


class Statements(StrictModel):
    """Every triple that a piece of a document states."""

    triples: tuple[Statement, ...] = Field(max_length=100)


def statements_request(chunk: Chunk, relations: Sequence[RelationConfig]) -> Request[Statements]:
    """Return the request for the triples that a text states."""
    told = (
        RequestedRelation(name=r.name, subject_type=r.subject_type, object_type=r.object_type)
        for r in relations
    )
    return Request(
        call="state_triples",
        instructions="List every triple (subject, relation, object) that the text states. Subject "
        "and object are names of things, spelt as in the text and no pronouns. Use the relations "
        "that are given, by their names, and no others; where none is given, name each relation in "
        "one to four words. As evidence copy the sentence that says so, word for word; it must "
        "contain both names. State nothing that is denied, supposed or known from elsewhere.",
        material=ChunkInput(title=chunk.title, text=chunk.text, relations=tuple(told)),
        answer=Statements,
    )


_STRAIGHT = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u02bb\u02bc`\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
    }
)
_KNOWN_CHARACTERS = 4096
"""Cache size: texts use few different characters."""
_INVISIBLE = frozenset({"Cc", "Cf", "Cs"})
_LAST_ACCENT = "\u036f"
"""Combining marks up to here are accents of European scripts; others are letters."""


class TextSpan(NamedTuple):
    """A half-open range of characters."""

    start: int
    end: int

    def of(self, text: str) -> str:
        """Return the characters of `text` in the range."""
        return text[self.start : self.end]


@lru_cache(maxsize=_KNOWN_CHARACTERS)
def normalized_quotation(character: str) -> str:
    """Return a quoted character with straight quotes and dashes, nothing invisible, case kept."""
    if character.isspace():
        return " "
    decomposed = unicodedata.normalize("NFKD", character.translate(_STRAIGHT))
    return "".join(char for char in decomposed if unicodedata.category(char) not in _INVISIBLE)


@lru_cache(maxsize=_KNOWN_CHARACTERS)
def normalized_name(character: str) -> str:
    """Return a character of a name: as quoted, without its accent or case."""
    quoted = normalized_quotation(character).lower()
    if unicodedata.combining(quoted[:1] or " "):  # of a letter that is written apart from it
        return "" if quoted <= _LAST_ACCENT else quoted
    return unicodedata.normalize("NFKD", fold_accents(quoted))


class NormalizedText:
    """A text with normalized spelling, and the original position of each of its characters."""

    def __init__(self, text: str, normalize: Callable[[str], str]) -> None:
        self._text = text
        self._normalize = normalize
        self._normalized, self._places = _normalized(text, normalize)
        self._edges = NameEdges(text)

    def find(self, wanted: str) -> TextSpan | None:
        """Return the first occurrence of `wanted`, normalized, as whole words; None if missing."""
        sought = _normalized(wanted, self._normalize)[0].strip()
        start = self._normalized.find(sought) if sought else -1
        while start >= 0:
            if span := self._whole(start, start + len(sought)):
                return span
            start = self._normalized.find(sought, start + 1)
        return None

    def _whole(self, start: int, end: int) -> TextSpan | None:
        """Return the range in the text; None inside of a character, word or number."""
        places = self._places
        begins = start == 0 or places[start - 1] != places[start]
        ends = end == len(places) or places[end - 1] != places[end]
        stop = places[end - 1] + 1
        while stop < len(self._text) and unicodedata.combining(self._text[stop]):
            stop += 1
        span = TextSpan(places[start], stop)
        is_whole = begins and ends and self._edges.hold(span.start, span.end)
        return span if is_whole else None


def _normalized(text: str, normalize: Callable[[str], str]) -> tuple[str, list[int]]:
    """Return the normalized text, with single spaces, and each character's original position."""
    characters: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        for normalized in normalize(character):
            if normalized != " " or (characters and characters[-1] != " "):
                characters.append(normalized)
                places.append(place)
    return "".join(characters), places


StatementFault = Literal[
    "evidence_not_in_document",
    "subject_not_in_evidence",
    "object_not_in_evidence",
    "no_name",
    "subject_is_object",
    "unknown_relation",
]
"""Why a statement is refused; the first fault in this order is counted."""

_MAX_NAME_WORDS = 8
_MAX_NAME_CHARACTERS = 80
_NAMELESS = frozenset(
    {"a", "an", "he", "her", "hers", "herself", "him", "himself", "his", "i", "it", "its", "itself",
     "me", "my", "one", "our", "she", "that", "the", "their", "them", "these", "they", "this",
     "those", "us", "we", "what", "which", "who", "whom", "whose", "you", "your"}
)  # fmt: skip
"""Words that name nothing; a name must contain another word."""
_OPEN_RELATION = re.compile(r"[^\W\d_]\w*")
_MAX_RELATION_WORDS = 5
_MAX_RELATION_CHARACTERS = 40


class Mention(NamedTuple):
    """A triple and where a document states it; names are spelt as in the document."""

    subject: str
    relation: str
    object: str
    document_id: str
    span: TextSpan
    """Range of the quotation in the document's text."""
    evidence: str

    @property
    def folded(self) -> tuple[str, str, str]:
        """A key that is equal for two mentions of the same triple."""
        return folded_name(self.subject), self.relation, folded_name(self.object)


class Checker:
    """Checks the statements about one chunk."""

    def __init__(self, chunk: Chunk, relations: Sequence[RelationConfig]) -> None:
        self._chunk = chunk
        self._text = NormalizedText(chunk.text, normalized_quotation)
        self._relations = {folded_relation(relation.name): relation.name for relation in relations}

    def mention(self, statement: Statement) -> Mention | StatementFault:
        """Return the statement in the document's own words, or why it is refused."""
        quoted = self._text.find(statement.evidence)
        if quoted is None:
            return "evidence_not_in_document"
        evidence = quoted.of(self._chunk.text)
        named = NormalizedText(evidence, normalized_name)
        subject, object_ = named.find(statement.subject), named.find(statement.object)
        if subject is None:
            return "subject_not_in_evidence"
        if object_ is None:
            return "object_not_in_evidence"
        names = [" ".join(span.of(evidence).split()) for span in (subject, object_)]
        for name in names:
            folded = phrases(name)
            fits = 0 < len(folded) <= _MAX_NAME_WORDS and len(name) <= _MAX_NAME_CHARACTERS
            if not fits or _NAMELESS.issuperset(folded):
                return "no_name"
        if folded_name(names[0]) == folded_name(names[1]):
            return "subject_is_object"
        relation = self._relation(statement.relation)
        if not relation:
            return "unknown_relation"
        start = self._chunk.start
        span = TextSpan(start + quoted.start, start + quoted.end)
        return Mention(names[0], relation, names[1], self._chunk.document_id, span, evidence)

    def _relation(self, stated: str) -> str:
        """Return the relation's name in the profile, or normalized if any is allowed; else ""."""
        folded = folded_relation(stated)
        if self._relations:
            return self._relations.get(folded, "")
        is_name = (
            _OPEN_RELATION.fullmatch(folded)
            and len(folded) <= _MAX_RELATION_CHARACTERS
            and folded.count("_") < _MAX_RELATION_WORDS
        )
        return folded if is_name else ""

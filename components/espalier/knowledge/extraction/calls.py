"""What a model is asked about a piece of a document, and what it may answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from espalier.completions import Request
from espalier.config import RelationConfig
from espalier.knowledge.extraction.chunks import Chunk

_Stated = Annotated[str, StringConstraints(max_length=2000)]
"""Any text: each statement is judged by itself, and one that is unfit costs the others nothing."""


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True)


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RelationTold(_Told):
    """A relation that may be stated."""

    name: str
    subject_type: str
    object_type: str


class ChunkTold(_Told):
    """A piece of a document, and the relations that are wanted; none stands for any."""

    title: str
    text: str
    relations: tuple[RelationTold, ...]


class Statement(_Answer):
    """A triple, and the words of the document that say so."""

    subject: _Stated
    relation: _Stated
    object: _Stated
    evidence: _Stated


class Statements(_Answer):
    """Every triple that a piece of a document states."""

    triples: tuple[Statement, ...] = Field(max_length=100)


def statements_request(chunk: Chunk, relations: Sequence[RelationConfig]) -> Request[Statements]:
    """Which triples does the text state?"""
    told = (
        RelationTold(name=r.name, subject_type=r.subject_type, object_type=r.object_type)
        for r in relations
    )
    return Request(
        call="state_triples",
        instructions="List every triple (subject, relation, object) that the text states. Subject "
        "and object are names of things, spelt as in the text and no pronouns. Use the relations "
        "that are given, by their names, and no others; where none is given, name each relation in "
        "one to four words. As evidence copy the sentence that says so, word for word; it must "
        "contain both names. State nothing that is denied, supposed or known from elsewhere.",
        material=ChunkTold(title=chunk.title, text=chunk.text, relations=tuple(told)),
        answer=Statements,
    )

"""Reading a question as the embedded teacher does: phrase by phrase, down to a name.

A reading rests on the question's words and the schema alone. It undoes what
`espalier.synthesis.phrasing` does for chains; what it cannot read, it does not guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from espalier.synthesis.fas.schema import Schema
from espalier.synthesis.phrasing import FRAMES, JOINED_FRAMES

_MAX_DEPTH = 6
_BOTH, _AND = "both ", " and "


@dataclass(frozen=True, slots=True)
class Reading:
    """Start at `name` and read `labels` one after the other, which ends at one of `kinds`."""

    name: str
    labels: tuple[str, ...]
    kinds: frozenset[str]


class QuestionReader:
    """Reads questions over a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._phrasings = [
            (*phrasing.split("{x}", 1), relation)
            for relation in schema.relations
            for phrasing in relation.phrasings
        ]

    def read(self, question: str) -> Reading | None:
        """The first reading that fits names and kinds; None where there is none."""
        for phrase in _phrases_in(question):
            reading = self._read(phrase, 0)
            if reading is not None:
                return reading
        return None

    def _read(self, phrase: str, depth: int) -> Reading | None:
        if kinds := self._schema.kinds(phrase):
            return Reading(phrase, (), kinds)
        if depth == _MAX_DEPTH:
            return None
        for reading in self._readings(phrase, depth):
            return reading
        return None

    def _readings(self, phrase: str, depth: int) -> Iterator[Reading]:
        for before, after, relation in self._phrasings:
            inner = self._inside(phrase, before, after, depth)
            if inner and relation.subject_kind in inner.kinds:
                kinds = frozenset({relation.object_kind})
                yield Reading(inner.name, (*inner.labels, relation.label), kinds)
        for label in self._schema.plain_labels:
            if inner := self._inside(phrase, f"the {label} of ", "", depth):
                yield Reading(inner.name, (*inner.labels, label), frozenset())
        if phrase.startswith(_BOTH):
            yield from self._joined(phrase.removeprefix(_BOTH), depth)

    def _inside(self, phrase: str, before: str, after: str, depth: int) -> Reading | None:
        if not (phrase.startswith(before) and phrase.endswith(after)):
            return None
        inner = phrase[len(before) : len(phrase) - len(after)]
        return self._read(inner, depth + 1) if inner.strip() else None

    def _joined(self, phrase: str, depth: int) -> Iterator[Reading]:
        """Both A and B: what is read for A, and then for B."""
        for place in re.finditer(_AND, phrase):
            first = self._read(phrase[: place.start()], depth + 1)
            second = self._read(phrase[place.end() :], depth + 1)
            if first and second and first.labels and second.labels:
                labels = first.labels + second.labels
                yield Reading(first.name, labels, first.kinds & second.kinds)


def _phrases_in(question: str) -> Iterator[str]:
    """What a question asks for, without its frame."""
    for frame in _FRAME_PATTERNS:
        if found := frame.fullmatch(question.strip()):
            yield found["np"]


def _pattern(frame: str) -> re.Pattern[str]:
    text = re.escape(frame).replace(r"\{kind\}", r"[\w ]+?").replace(r"\{np\}", r"(?P<np>.+)")
    return re.compile(text, re.DOTALL)


_FRAME_PATTERNS = tuple(_pattern(frame) for frame in (*JOINED_FRAMES, *FRAMES))

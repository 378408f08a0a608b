"""Documents in pieces that fit into one request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from espalier.knowledge.sources import SourceDocument

_MAX_LINE_CHARACTERS = 1000
"""A line of thirty words at most: a longer one is no prose, and could outgrow any context."""


class Chunk(NamedTuple):
    """Neighbouring lines of one document.

    The text of a document is its lines, a line break between two: `start` counts its characters.
    """

    document_id: str
    title: str
    start: int
    text: str


def chunks_of(document: SourceDocument, max_words: int) -> Iterator[Chunk]:
    """Every line that a model can read, once and in order, in as few chunks as hold them."""
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
    """Whether a line is of a length that texts have."""
    return len(line) <= _MAX_LINE_CHARACTERS

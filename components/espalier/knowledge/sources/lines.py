"""Text of a document as short lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_LINE_WORDS = 30
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_MARKUP = re.compile(r"^(?:#{1,6}\s+|[-*+>]\s+|\d+[.)]\s+)+")


def lines_of(text: str) -> Iterator[str]:
    """Sentences and lines of at most `MAX_LINE_WORDS` words, without markup at their start."""
    for line in text.splitlines():
        for sentence in _SENTENCE_END.split(_MARKUP.sub("", line.strip())):
            sentence_words = sentence.split()
            for start in range(0, len(sentence_words), MAX_LINE_WORDS):
                yield " ".join(sentence_words[start : start + MAX_LINE_WORDS])

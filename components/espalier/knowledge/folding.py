"""Folding of text: what makes two spellings of a name the same, in search and in checks."""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"\w+")
_APOSTROPHES = str.maketrans("", "", "'\u2019\u2018\u02bb\u02bc`\u00b4")
EMPTY_WORDS = frozenset({"of", "the", "a", "an", "is", "in", "that"})
"""Words that say nothing about which line or title a query means."""


def fold(text: str) -> str:
    """Lower case without combining marks or apostrophes ("N'Djamena" -> "ndjamena")."""
    text = text.translate(_APOSTROPHES)
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(char for char in decomposed if not unicodedata.combining(char)).lower()


def words(text: str) -> list[str]:
    """The folded words of `text`, in order."""
    return _WORD.findall(fold(text))


def folded_name(name: str) -> str:
    """The key under which two names are the same."""
    return " ".join(words(name))


def content_words(text: str) -> list[str]:
    """The folded words that carry meaning; all of them where none does."""
    found = words(text)
    return [word for word in found if word not in EMPTY_WORDS] or found

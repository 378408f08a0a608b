"""Folding of text, so that spellings of a name compare equal, and finding names in text."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator

_WORD = re.compile(r"\w+")
_APOSTROPHES = str.maketrans("", "", "'\u2019\u2018\u02bb\u02bc`\u00b4")
EMPTY_WORDS = frozenset({"of", "the", "a", "an", "is", "in", "that"})
"""Words that do not help to distinguish lines or titles."""


def fold(text: str) -> str:
    """Return lower case without combining marks or apostrophes ("N'Djamena" -> "ndjamena")."""
    text = text.translate(_APOSTROPHES)
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(char for char in decomposed if not unicodedata.combining(char)).lower()


def words(text: str) -> list[str]:
    """Return the folded words of `text`, in order."""
    return _WORD.findall(fold(text))


def folded_name(name: str) -> str:
    """Return the key by which names are compared."""
    return " ".join(words(name))


def content_words(text: str) -> list[str]:
    """Return the folded words without `EMPTY_WORDS`; all words if nothing else is left."""
    found = words(text)
    return [word for word in found if word not in EMPTY_WORDS] or found


def name_pattern(names: Iterable[str], *, ignores_case: bool = False) -> re.Pattern[str]:
    """Return a pattern that matches any of `names` as whole words, preferring long names."""
    longest_first = sorted(names, key=len, reverse=True)
    any_name = "|".join(map(re.escape, longest_first)) or r"(?!)"
    flags = re.IGNORECASE if ignores_case else re.NOFLAG
    return re.compile(rf"(?<!\w)(?:{any_name})(?!\w)", flags)


_SEGMENT_BREAK = re.compile(r": |; | \| ")
"""Separators of fields in a line; a name never spans two fields."""


class NameIndex:
    """Folded names, indexed by first word and length."""

    def __init__(self, names: Iterable[str]) -> None:
        self._lengths: dict[str, set[int]] = defaultdict(set)
        self._names: set[tuple[str, ...]] = set()
        for name in names:
            if name_words := tuple(words(name)):
                self._names.add(name_words)
                self._lengths[name_words[0]].add(len(name_words))

    def found_in(self, text: str) -> Iterator[str]:
        """Yield every occurrence of a name in `text`, folded."""
        for segment in _SEGMENT_BREAK.split(text):
            text_words = words(segment)
            for start, first in enumerate(text_words):
                for length in self._lengths.get(first, ()):
                    candidate = tuple(text_words[start : start + length])
                    if candidate in self._names:
                        yield " ".join(candidate)

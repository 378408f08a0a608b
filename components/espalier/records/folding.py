"""Folding of text, so that spellings of a name compare equal, and finding names in text."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator

_WORD = re.compile(r"\w+")
_FOLDED_SCRIPTS = ("LATIN", "GREEK")
_STRESS = "\u0300\u0301"
"""Marks that other scripts use for the stress alone."""
_ALIKE = str.maketrans("\u0451", "\u0435")
"""Letters that one language writes in place of each other: Russian \u0451 and \u0435."""
_APOSTROPHES = str.maketrans("", "", "'\u2019\u2018\u02bb\u02bc`\u00b4")
EMPTY_WORDS = frozenset({"of", "the", "a", "an", "is", "in", "that"})
"""Words that do not help to distinguish lines or titles."""


def fold(text: str) -> str:
    """Return lower case without accents or apostrophes ("N'Djamena" -> "ndjamena")."""
    text = text.translate(_APOSTROPHES)
    return text.lower() if text.isascii() else fold_accents(text).lower().translate(_ALIKE)


def fold_accents(text: str) -> str:
    """Drop the marks of Latin and Greek letters, and those of stress; compose the rest again.

    Marks of other scripts are letters: without them three words of Hindi may be one, and Japanese
    b, p and h.
    """
    kept: list[str] = []
    base_is_folded = False
    for char in unicodedata.normalize("NFKD", text):
        if not unicodedata.combining(char):
            base_is_folded = unicodedata.name(char, "").startswith(_FOLDED_SCRIPTS)
            kept.append(char)
        elif not base_is_folded and char not in _STRESS:
            kept.append(char)
    return unicodedata.normalize("NFC", "".join(kept))


def words(text: str) -> list[str]:
    """Return the folded words of `text`, in order: letters, digits and marks."""
    folded = fold(text)
    return _WORD.findall(folded) if folded.isascii() else _words_with_marks(folded)


def _words_with_marks(folded: str) -> list[str]:
    r"""`\w+` breaks words at vowel signs, which are no letters to `re`."""
    blanked = (char if _is_of_word(char) else " " for char in folded)
    found = "".join(blanked).split()
    return [word for word in found if any(map(str.isalnum, word))]


def _is_of_word(char: str) -> bool:
    return char.isalnum() or char == "_" or unicodedata.category(char).startswith("M")


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

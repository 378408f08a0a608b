"""Where a quotation or a name stands in a text, however spaces, quotes and accents are written."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

_STRAIGHT = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u02bb\u02bc`\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
    }
)
_KNOWN_CHARACTERS = 4096
"""Of any text few are different: evening one out is looked up, not computed."""
_INVISIBLE = frozenset({"Cc", "Cf", "Cs"})


class Span(NamedTuple):
    """Characters of a text, the last one excluded."""

    start: int
    end: int

    def of(self, text: str) -> str:
        """What stands there."""
        return text[self.start : self.end]


@lru_cache(maxsize=_KNOWN_CHARACTERS)
def as_quoted(character: str) -> str:
    """A character of a quotation: straight quotes and dashes, nothing invisible, case kept."""
    if character.isspace():
        return " "
    decomposed = unicodedata.normalize("NFKD", character.translate(_STRAIGHT))
    return "".join(char for char in decomposed if unicodedata.category(char) not in _INVISIBLE)


@lru_cache(maxsize=_KNOWN_CHARACTERS)
def as_named(character: str) -> str:
    """A character of a name: as quoted, without its accent or case."""
    quoted = as_quoted(character).lower()
    return "".join(char for char in quoted if not unicodedata.combining(char))


class EvenedText:
    """A text with its spelling evened out, and the place of every character of it."""

    def __init__(self, text: str, even: Callable[[str], str]) -> None:
        self._even = even
        self._evened, self._places = _evened(text, even)

    def find(self, wanted: str) -> Span | None:
        """Where `wanted`, evened out likewise, stands first as whole words; None if nowhere."""
        sought = _evened(wanted, self._even)[0].strip()
        start = self._evened.find(sought) if sought else -1
        while start >= 0:
            end = start + len(sought)
            if self._is_edge(start) and self._is_edge(end):
                return Span(self._places[start], self._places[end - 1] + 1)
            start = self._evened.find(sought, start + 1)
        return None

    def _is_edge(self, place: int) -> bool:
        """Whether no word goes on across `place`."""
        around = self._evened[max(place - 1, 0) : place + 1]
        return len(around) < 2 or not all(_in_word(character) for character in around)


def _evened(text: str, even: Callable[[str], str]) -> tuple[str, list[int]]:
    """The evened text, one space where there were several, and where each character comes from."""
    characters: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        for evened in even(character):
            if evened != " " or (characters and characters[-1] != " "):
                characters.append(evened)
                places.append(place)
    return "".join(characters), places


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_" or unicodedata.combining(character) > 0

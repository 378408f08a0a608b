"""Names that no source has, for what is read so that copying is learned and no name is."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from espalier.knowledge.folding import folded_name

FEW_NAMES = 1000
"""Of fewer, the policy learns the spelling and the facts by heart."""
_MAX_DRAWS = 10
"""Few names soon give one that is taken already."""
_CHANGED_SHARE = 0.3
_KIND_NAMES, _KIND_SHARE = 3, 0.02
"""A word says of what kind a thing is ("Works", "Museum") where so many names have it, and such a
share of them."""


class InventedNames:
    """Makes new names: the head of one name and the tail of another.

    Of fewer than a thousand names each word is made so, and some letters are changed too. Their
    halves are spelled with few of the tokenizer's tokens, and the policy never copied a name that
    is spelled with the others: over a hundred documents no unseen name of forty, and 37 of them
    with changed letters. Words that say of what kind a thing is stay: "Jutrar Works" becomes
    "Dolsan Works". Under names of no kind questions were harder than under names that are real and
    were never met: a warm start answered 84 % of three steps for 91.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Store what names are put together from: at least one name."""
        self._parts = names
        self._letters = ""
        self._kind_words: frozenset[str] = frozenset()
        if len(names) < FEW_NAMES:
            self._letters = "".join(filter(str.isalpha, "".join(names))).lower()
            spelled = [name.split() for name in dict.fromkeys(names)]
            counts = Counter(word for found in spelled for word in {w.casefold() for w in found})
            least = max(_KIND_NAMES, _KIND_SHARE * len(spelled))
            self._kind_words = frozenset(word for word, n in counts.items() if n >= least)
            every = [word for found in spelled for word in found if _has_letters(word)]
            own = [word for word in every if word.casefold() not in self._kind_words]
            self._parts = own or every or names

    def in_place_of(self, name: str, rng: random.Random) -> str:
        """Another name, or another number of as many digits, as the generator draws it."""
        if not self._letters:
            if name.isdecimal():
                return _digits(name, rng)
            return " ".join(self._joined(rng).split()).strip(" -'")  # halves may meet at a blank
        words = name.split()
        kept = [word.casefold() in self._kind_words for word in words]
        if all(kept):  # many share both a first name and a surname: nothing would change
            kept = [False] * len(words)
        return " ".join(
            word if is_kept else self._word(word, rng)
            for word, is_kept in zip(words, kept, strict=True)
        )

    def _word(self, word: str, rng: random.Random) -> str:
        """Another word in place of one; punctuation by itself stays."""
        if word.isdecimal():
            return _digits(word, rng)
        if not _has_letters(word):
            return word
        joined = self._joined(rng).strip("-'").lower()
        made = "".join(
            rng.choice(self._letters) if char.isalpha() and rng.random() < _CHANGED_SHARE else char
            for char in joined
        )
        return made[:1].upper() + made[1:] if word[:1].isupper() else made

    def _joined(self, rng: random.Random) -> str:
        head, tail = rng.choice(self._parts), rng.choice(self._parts)
        return head[: (len(head) + 1) // 2] + tail[len(tail) // 2 :]

    def apart_from(self, taken: set[str], name: str, rng: random.Random) -> str:
        """Another name in place of `name`, or itself where no draw gives one that is not taken.

        Args:
            taken: folded names; the new one is added to them.
            name: that is replaced.
            rng: draws.
        """
        for _ in range(_MAX_DRAWS):
            other = self.in_place_of(name, rng)
            if (key := folded_name(other)) and key not in taken:
                taken.add(key)
                return other
        return name


def _has_letters(word: str) -> bool:
    return any(map(str.isalpha, word))


def _digits(number: str, rng: random.Random) -> str:
    return "".join(rng.choices("123456789", k=len(number)))

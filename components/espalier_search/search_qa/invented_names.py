"""Invented names for reading material, so that copying is learned and no real name is."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from espalier.records.folding import folded_name

FEW_NAMES = 1000
"""With fewer names than this, a policy memorises their spelling and facts."""
_MAX_DRAWS = 10
"""Draws for a name that is not taken; few names soon yield one that is."""
_CHANGED_SHARE = 0.3
_KIND_NAMES, _KIND_SHARE = 3, 0.02
"""A word names a kind of thing ("Works", "Museum") if at least this many names, and this share of
all names, contain it."""


class InventedNames:
    """Makes new names from the first half of one name and the second half of another.

    With fewer than a thousand names, each word is made in this way and some letters are changed
    too. Halves alone use few of the tokenizer's tokens, and the policy never copied a name with
    other tokens: over a hundred documents, it copied no unseen name out of forty, but 37 with
    changed letters. Words that name a kind of thing stay: "Jutrar Works" becomes "Dolsan Works".
    Under names without a kind, questions were harder than under unseen real names: a warm start
    answered 84 % of three-step questions instead of 91 %.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Prepare the parts from which names are made; at least one name is needed."""
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
        """Return another name, or another number with as many digits, drawn by `rng`."""
        if not self._letters:
            if name.isdecimal():
                return _digits(name, rng)
            return " ".join(self._joined(rng).split()).strip(" -'")  # halves may meet at a space
        words = name.split()
        kept = [word.casefold() in self._kind_words for word in words]
        if all(kept):  # many names share all words: nothing would change
            kept = [False] * len(words)
        return " ".join(
            word if is_kept else self._word(word, rng)
            for word, is_kept in zip(words, kept, strict=True)
        )

    def _word(self, word: str, rng: random.Random) -> str:
        """Return another word in place of one; pure punctuation stays."""
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
        """Return another name for `name`, or `name` itself if every draw is taken.

        Args:
            taken: folded names; the new one is added to them.
            name: the name to replace.
            rng: the random generator.
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

"""Quality: what makes a text unfit, in one word each."""

from __future__ import annotations

from collections import Counter

from espalier.config import CurationConfig
from espalier.knowledge.folding import words

_RUN_WORDS = 3
_MIN_RUNS = 20
_MIN_LETTER_SHARE = 0.4


def quality_fault(text: str, config: CurationConfig) -> str:
    """`too_short`, `too_long`, `repetitive`, `no_language`, `damaged`; empty where it is fit."""
    found = words(text)
    if len(found) < config.min_words:
        return "too_short"
    if len(found) > config.max_words:
        return "too_long"
    if "\ufffd" in text or any(not c.isprintable() and c not in "\n\t" for c in text):
        return "damaged"
    visible = [char for char in text if not char.isspace()]
    if sum(char.isalnum() for char in visible) < _MIN_LETTER_SHARE * len(visible):
        return "no_language"
    runs = Counter(tuple(found[i : i + _RUN_WORDS]) for i in range(len(found) - _RUN_WORDS + 1))
    if runs.total() >= _MIN_RUNS:
        most = runs.most_common(1)[0][1]
        if most > config.max_repeated_share * runs.total():
            return "repetitive"
    return ""

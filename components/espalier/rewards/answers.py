"""Answer verifiers: exact match and F1 after SQuAD normalisation.

Normalisation is that of the SQuAD v1.1 evaluation (lower case, punctuation and English articles
removed, white space folded; Rajpurkar et al. 2016, arXiv:1606.05250), after one step of our own:
accents are folded away, because an uncased policy cannot write them.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = frozenset(string.punctuation)


def fold_accents(text: str) -> str:
    """Decompose `text` by compatibility and drop its combining marks."""
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def normalize_answer(text: str) -> str:
    """Return the form in which answers are compared; may be empty."""
    return squad_form(fold_accents(text))


def squad_form(text: str) -> str:
    """Return SQuAD's normalisation only, with accents; may be empty."""
    lowered = text.lower()
    unpunctuated = "".join(char for char in lowered if char not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", unpunctuated).split())


def exact_match(answer: str | None, gold: Iterable[str]) -> bool:
    """Whether `answer` equals one of the accepted answers; a missing answer never does."""
    if answer is None:
        return False
    normalized = normalize_answer(answer)
    return any(normalized == normalize_answer(accepted) for accepted in gold)


def occurs_in(answer: str, text: str) -> bool:
    """Whether the words of `answer` occur consecutively in `text`, both normalised.

    An answer that normalises to nothing never occurs.
    """
    words = normalize_answer(answer)
    return bool(words) and f" {words} " in f" {normalize_answer(text)} "


def token_f1(answer: str | None, gold: Iterable[str]) -> float:
    """Return the best word-overlap F1 of `answer` against the accepted answers, 0-1."""
    if answer is None:
        return 0.0
    return max((_pair_f1(answer, accepted) for accepted in gold), default=0.0)


def _pair_f1(answer: str, accepted: str) -> float:
    answer_words = normalize_answer(answer).split()
    gold_words = normalize_answer(accepted).split()
    if not answer_words or not gold_words:
        return float(answer_words == gold_words)
    shared = sum((Counter(answer_words) & Counter(gold_words)).values())
    return 2 * shared / (len(answer_words) + len(gold_words))

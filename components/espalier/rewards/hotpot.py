"""HotpotQA's own scores of an answer, and of the sentences that support it.

`hotpot_evaluate_v1.py` of hotpotqa/hotpot, functions `exact_match_score` and `f1_score`: SQuAD's
normalisation unchanged, accents kept; yes, no and noanswer share no words with anything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable
from typing import NamedTuple

from espalier.rewards.answers import squad_form

_WHOLE = frozenset({"yes", "no", "noanswer"})


class HotpotScores(NamedTuple):
    """Exact match and F1 over words, 0-1."""

    em: float
    f1: float


def hotpot_scores(answer: str | None, gold: str) -> HotpotScores:
    """Return the scores of `answer` against one accepted answer; a missing answer scores 0."""
    if answer is None:
        return HotpotScores(0.0, 0.0)
    said, wanted = squad_form(answer), squad_form(gold)
    em = float(said == wanted)
    if said != wanted and {said, wanted} & _WHOLE:
        return HotpotScores(em, 0.0)
    words, gold_words = said.split(), wanted.split()
    shared = sum((Counter(words) & Counter(gold_words)).values())
    if not shared:
        return HotpotScores(em, 0.0)
    precision, recall = shared / len(words), shared / len(gold_words)
    return HotpotScores(em, 2 * precision * recall / (precision + recall))


class SupportScores(NamedTuple):
    """Agreement of two sets of supporting sentences, 0-1."""

    em: float
    f1: float
    precision: float
    recall: float


def supporting_facts(said: Collection[Hashable], gold: Collection[Hashable]) -> SupportScores:
    """Compare sentences, each a pair of title and number; one that is named twice counts once.

    This is `update_sp` of the same script.
    """
    named, wanted = set(said), set(gold)
    shared = len(named & wanted)
    precision = shared / len(named) if named else 0.0
    recall = shared / len(wanted) if wanted else 0.0
    f1 = 2 * precision * recall / (precision + recall) if shared else 0.0
    return SupportScores(float(named == wanted), f1, precision, recall)

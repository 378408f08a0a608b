"""A user's own training questions in other words, by the model of `[teacher]`.

The model reads a question with its answer, and writes questions. A question is kept if it names the
title of the document where the original does, does not give the answer away, and is new; every
other is counted under the first reason against it. Class names and docstrings of the model's answer
are part of the schema and of the cache key (`agent_texts.calls`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pydantic import Field

from espalier.completions import ModelRefusal, PlainText, Request, StrictModel, all_answers
from espalier.config import EndpointConfig, VllmBatchConfig
from espalier.environments.funnel import Funnel
from espalier.records.folding import folded_name, is_named_in
from espalier_search.synthesis.own_questions import OwnQuestion

_MAX_WORDS = 40
_POSSESSIVE = re.compile(r"['\u2019]s\b")
HEADING = "train.reworded"
"""Heading of the funnel's counts."""


class QuestionInput(StrictModel):
    """What the model is shown."""

    question: str
    answer: str
    wanted: int


class Rewordings(StrictModel):
    """The same question in other words, each asking for the same answer."""

    questions: tuple[PlainText, ...] = Field(max_length=64)


def reworded_questions(
    pairs: Sequence[OwnQuestion],
    model: EndpointConfig | VllmBatchConfig,
    *,
    wanted: int,
    titles: Mapping[str, str],
    taken: frozenset[str],
    funnel: Funnel,
) -> list[OwnQuestion]:
    """Up to `wanted` rewordings of each pair.

    Args:
        pairs: training questions.
        model: the model that rewords.
        wanted: maximum number of rewordings of a pair.
        titles: document id -> title.
        taken: folded questions of all splits, none of which is kept again.
        funnel: counts kept and refused questions.

    Raises:
        EngineError: the model cannot be used.
    """
    requests = (_request(pair, wanted) for pair in pairs)
    asked = set(taken)
    found: list[OwnQuestion] = []
    for pair, answer in zip(pairs, all_answers(model, requests), strict=True):
        if isinstance(answer, ModelRefusal):
            funnel.count(HEADING, f"answer_{answer.reason}")
            continue
        for text in answer.questions[:wanted]:
            reason = _reason_against(text, pair, titles.get(pair.document_id, ""), asked)
            funnel.count(HEADING, reason or "kept")
            if reason is None:
                asked.add(folded_name(text))
                question = " ".join(text.split())
                found.append(OwnQuestion(question, pair.answers, pair.document_id, pair.split))
    return found


def _request(pair: OwnQuestion, wanted: int) -> Request[Rewordings]:
    return Request(
        call="reword_question",
        instructions="Ask the question in other words, as different people would: as many times as "
        "wanted. Keep every name as it is spelt, ask for the same answer, and do not give the "
        "answer away.",
        material=QuestionInput(question=pair.question, answer=pair.answers[0], wanted=wanted),
        answer=Rewordings,
    )


def _reason_against(text: str, pair: OwnQuestion, title: str, asked: set[str]) -> str | None:
    folded = folded_name(text)
    if not folded or len(text.split()) > _MAX_WORDS:
        return "empty_or_too_long"
    if folded in asked:
        return "asked_before"
    if _names(pair.question, title) and not _names(text, title):
        return "name_lost"
    if any(_names(text, answer) for answer in pair.answers if not _names(pair.question, answer)):
        return "gives_the_answer_away"
    return None


def _names(text: str, name: str) -> bool:
    return is_named_in(name, _POSSESSIVE.sub("", text))  # folding would make "Ada's" one word

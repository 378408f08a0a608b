"""The embedded teacher: a `Model` that answers from the knowledge base, without any network.

It plans what it reads in a question, and goes wrong on purpose as often as the profile says, so
that plans have to be judged as a model's would.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from espalier.completions import Refusal, Request
from espalier.completions.answers import AnswerT
from espalier.knowledge.folding import content_words
from espalier.synthesis import plans
from espalier.synthesis.fas.calls import (
    Alternatives,
    Claim,
    Claims,
    DocumentTold,
    Guess,
    Judgement,
    KnowledgeTold,
    Plan,
    PlanTold,
    Questions,
    QuestionTold,
    Refined,
)
from espalier.synthesis.fas.drafting import QuestionDrafter
from espalier.synthesis.fas.judging import PlanJudge
from espalier.synthesis.fas.memory import date_in
from espalier.synthesis.fas.mistakes import mistaken
from espalier.synthesis.fas.plain import plain
from espalier.synthesis.fas.reader import QuestionReader, Reading
from espalier.synthesis.fas.schema import Schema
from espalier.synthesis.fas.straying import stray_candidates
from espalier.synthesis.observations import values

_MAX_QUERY_WORDS = 8
_UNKNOWN = "unknown"

Handler = Callable[[Any, random.Random], BaseModel | Refusal]


class EmbeddedTeacher:
    """Answers every call of `espalier.synthesis.fas.calls`; equal requests have equal answers."""

    def __init__(self, schema: Schema, *, mistake_share: float, seed: int) -> None:
        self._schema = schema
        self._reader = QuestionReader(schema)
        self._drafter = QuestionDrafter(schema)
        self._judge = PlanJudge(schema)
        self._mistake_share = mistake_share
        self._seed = seed
        self._handlers: dict[type[BaseModel], Handler] = {
            Claims: self._claims,
            Questions: self._drafter.questions,
            Plan: self._plan,
            Judgement: self._judgement,
            Guess: self._guess,
            Refined: self._refined,
            Alternatives: lambda told, rng: stray_candidates(told, self._schema, rng),
        }

    async def answer(self, request: Request[AnswerT]) -> AnswerT | Refusal:
        """See `Model`."""
        handler = self._handlers.get(request.answer)
        if handler is None:
            return Refusal("refused", f"{request.call} is none of the calls that it knows")
        told = request.material.model_dump_json()
        rng = random.Random(f"{self._seed}/{request.call}/{request.sample}/{told}")
        answer = handler(request.material, rng)
        assert isinstance(answer, request.answer | Refusal), "a handler answers in its own type"
        return answer

    def _claims(self, told: DocumentTold, rng: random.Random) -> Claims:
        del rng  # what a document states leaves nothing to draw
        title = plain(told.title)
        stated = [line for line in map(plain, told.lines) if line] if title else []
        return Claims(
            claims=tuple(Claim(entity=title, date=date_in(line), text=line) for line in stated)
        )

    def _plan(self, told: QuestionTold, rng: random.Random) -> Plan | Refusal:
        if not any(tool.name == "search" for tool in told.tools):
            return Refusal("refused", "no tool is offered that could find it")
        reading = self._reader.read(told.question)
        if reading is None or not reading.labels:
            found = content_words(told.question)[:_MAX_QUERY_WORDS]
            query = plain(" ".join(found))
            return Plan(analysis=plans.look_up(), tool="search", query=query or _UNKNOWN)
        name, labels = reading.name, reading.labels
        if rng.random() < self._mistake_share:
            name, labels = mistaken(name, labels, self._schema, rng)
        query = plans.search_query(name, labels[0])
        return Plan(analysis=plans.remaining_hops(labels), tool="search", query=query)

    def _judgement(self, told: PlanTold, rng: random.Random) -> Judgement:
        del rng
        return self._judge.judge(told)

    def _guess(self, told: QuestionTold, rng: random.Random) -> Guess:
        reading = self._reader.read(told.question)
        if reading is None or not reading.labels:
            return Guess(parts=(plans.look_up(),), answer=rng.choice(self._schema.names))
        return Guess(parts=reading.labels, answer=self._guessed(reading, rng))

    def _guessed(self, reading: Reading, rng: random.Random) -> str:
        """Some name that could be the answer: of a kind that the last line leads to."""
        for name in rng.choices(self._schema.names, k=50):
            if self._schema.kinds(name) & reading.kinds and (text := plain(name)):
                return text
        return _UNKNOWN

    def _refined(self, told: KnowledgeTold, rng: random.Random) -> Refined:
        del rng
        reading = self._reader.read(told.question)
        steps: list[str] = []
        name = reading.name if reading else ""
        for label in reading.labels if reading else ():
            found = next((v for text in told.knowledge if (v := values(text, name, label))), None)
            if found is None or found[1:]:
                break
            value = found[0]
            steps.append(f"{name} {label} is {value}")
            name = value
        if reading is None or len(steps) < len(reading.labels) or not plain(name):
            return Refined(reasoning="the knowledge does not say", answer=told.first_answer)
        return Refined(reasoning=plans.LABEL_SEPARATOR.join(steps), answer=name)

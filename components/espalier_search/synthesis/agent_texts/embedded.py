"""The embedded teacher: a `Model` for agent texts that answers without any network.

It plans by parsing the question, and makes deliberate mistakes with the profile's probability, so
that its plans have to be judged like those of a language model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

from pydantic import BaseModel

from espalier.completions import ModelRefusal, Request
from espalier.completions.request import AnswerT
from espalier.records.folding import content_words, phrases
from espalier.records.knowledge import Relation
from espalier_search.synthesis.agent_texts.calls import (
    Alternatives,
    Candidate,
    Claim,
    Claims,
    DocumentInput,
    Guess,
    Judgement,
    KnowledgeInput,
    MemoryInput,
    Plan,
    PlanInput,
    QuestionInput,
    Questions,
    Refined,
    StepInput,
    Style,
    StyledQuestion,
    plain_text,
)
from espalier_search.synthesis.agent_texts.first_order import date_in
from espalier_search.synthesis.agent_texts.schema import (
    Facts,
    PlanJudge,
    QuestionReader,
    Schema,
)
from espalier_search.synthesis.search_wording import (
    LABEL_SEPARATOR,
    LOOK_UP,
    READY_TO_ANSWER,
    remaining_hops,
    search_query,
    shown_hits,
)
from espalier_search.synthesis.teacher import misspelled

Labels = tuple[str, ...]


def with_mistake(
    name: str, labels: Labels, schema: Schema, rng: random.Random
) -> tuple[str, Labels]:
    """Name and labels with one mistake: a hop left out, swapped or replaced, or a wrong name."""
    recipes = ["another_line", "misspelled", "another_name"]
    if len(labels) > 1:
        recipes += ["forgotten", "swapped"] * 2
    place = rng.randrange(len(labels))
    match rng.choice(recipes):
        case "forgotten":
            return name, labels[:place] + labels[place + 1 :]
        case "swapped":
            first = min(place, len(labels) - 2)
            pair = labels[first + 1], labels[first]
            return name, labels[:first] + pair + labels[first + 2 :]
        case "another_line":
            others = [label for label in schema.labels if label != labels[place]]
            other = rng.choice(others or list(labels))
            return name, (*labels[:place], other, *labels[place + 1 :])
        case "misspelled":
            return misspelled(name, rng), labels
        case _:
            return plain_text(rng.choice(schema.names)) or name, labels


_TRIES = 40


def alternative_actions(told: StepInput, schema: Schema, rng: random.Random) -> Alternatives:
    """Up to `told.count` distinct actions other than the one taken."""
    found: dict[str, Candidate] = {}
    for thought, action, text in _drawn(told, schema, rng):
        text = plain_text(text)
        key = f"{action} {text}".casefold()
        if text and key != f"{told.taken.action} {told.taken.text}".casefold():
            found.setdefault(key, Candidate(thought=thought, action=action, text=text))
        if len(found) == told.count:
            break
    return Alternatives(candidates=tuple(found.values()))


def _drawn(
    told: StepInput, schema: Schema, rng: random.Random
) -> Iterator[tuple[str, Literal["search", "answer"], str]]:
    """Thought, kind and text of candidate actions."""
    names = [hit.title for text in told.seen for hit in shown_hits(text) if hit.title]
    shown = [
        value
        for text in told.seen
        for hit in shown_hits(text)
        for line in hit.lines
        for value in line.partition(": ")[2].split("; ")
        if value
    ]
    for _ in range(_TRIES):
        label = rng.choice(schema.labels) if schema.labels else "name"
        match rng.randrange(4):
            case 0:
                name = rng.choice(names or list(schema.names))
                yield label, "search", search_query(name, label)
            case 1 if told.taken.action == "search":
                yield told.taken.thought, "search", misspelled(told.taken.text, rng)
            case 2:
                yield READY_TO_ANSWER, "answer", rng.choice(shown or list(schema.names))
            case _:
                name = rng.choice(shown or list(schema.names))
                yield label, "search", search_query(name, label)


_FRAMES = ("What is {np}?", "Name {np}.", "Tell me {np}.", "Find {np}.")
_DIGIT = re.compile(r"\d")


class QuestionDrafter:
    """Words questions about a memory with the phrasings of its relations."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._styles: dict[Style, Callable[[MemoryInput, random.Random], str]] = {
            "retrieval": self._retrieval,
            "numeric": self._numeric,
            "multi_hop": self._multi_hop,
            "synthesis": self._synthesis,
        }

    def questions(self, told: MemoryInput, rng: random.Random) -> Questions:
        """One question for each wanted style that the memory allows."""
        asked = []
        for style in told.styles:
            phrase = self._styles[style](told, rng)
            text = plain_text(rng.choice(_FRAMES).format(np=phrase)) if phrase else ""
            if text:
                asked.append(StyledQuestion(style=style, question=text))
        return Questions(questions=tuple(asked))

    def _retrieval(self, told: MemoryInput, rng: random.Random) -> str:
        related = self._related(told)
        return _phrase(rng.choice(related)[0], told.entity, rng) if related else ""

    def _numeric(self, told: MemoryInput, rng: random.Random) -> str:
        facts = self._facts(told)
        labels = [
            label
            for label in self._schema.plain_labels
            if label in facts and _DIGIT.search(facts[label][0])
        ]
        return f"the {rng.choice(labels)} of {told.entity}" if labels else ""

    def _multi_hop(self, told: MemoryInput, rng: random.Random) -> str:
        chains = [
            (relation, second)
            for relation, listed in self._related(told)
            if len(listed) == 1
            for second in self._schema.relations
            if second.subject_kind == relation.object_kind
            and second.label in self._schema.facts(listed[0], relation.object_kind)
        ]
        if not chains:
            return ""
        relation, second = rng.choice(chains)
        return _phrase(second, _phrase(relation, told.entity, rng), rng, ends=True)

    def _synthesis(self, told: MemoryInput, rng: random.Random) -> str:
        related = self._related(told)
        if len(related) < 2:
            return ""
        (first, _), (second, _) = rng.sample(related, 2)
        phrases = [_phrase(relation, told.entity, rng) for relation in (first, second)]
        return f"both {phrases[0]} and {phrases[1]}"

    def _related(self, told: MemoryInput) -> list[tuple[Relation, list[str]]]:
        """Relations of the entity's kinds that its claims state, each with the listed objects."""
        kinds = sorted(self._schema.kinds(told.entity))
        return [
            (relation, list(listed))
            for label, listed in self._facts(told).items()
            for kind in kinds
            if (relation := self._schema.relation(kind, label))
        ]

    def _facts(self, told: MemoryInput) -> Facts:
        return self._schema.facts_in(told.entity, (claim.text for claim in told.claims))


def _phrase(relation: Relation, inner: str, rng: random.Random, *, ends: bool = False) -> str:
    """A phrasing around `inner`; with `ends` one that ends with it, which reads better nested."""
    ending = [text for text in relation.phrasings if text.endswith("{x}")] if ends else []
    return rng.choice(ending or list(relation.phrasings)).replace("{x}", inner)


_MAX_QUERY_WORDS = 8
_UNKNOWN = "unknown"

Handler = Callable[[Any, random.Random], BaseModel | ModelRefusal]


class EmbeddedTeacher:
    """A `Model` for every request of `agent_texts.calls`; equal requests get equal answers."""

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
            Alternatives: lambda told, rng: alternative_actions(told, self._schema, rng),
        }

    async def answer(self, request: Request[AnswerT]) -> AnswerT | ModelRefusal:
        """Answer a request for agent texts without any network."""
        handler = self._handlers.get(request.answer)
        if handler is None:
            return ModelRefusal("refused", f"{request.call} is none of the calls that it knows")
        told = request.material.model_dump_json()
        rng = random.Random(f"{self._seed}/{request.call}/{request.sample}/{told}")
        answer = handler(request.material, rng)
        assert isinstance(answer, request.answer | ModelRefusal), (
            "a handler answers in its own type"
        )
        return answer

    def _claims(self, told: DocumentInput, rng: random.Random) -> Claims:
        del rng  # deterministic: the document states its claims
        title = plain_text(told.title)
        stated = [line for line in map(plain_text, told.lines) if line] if title else []
        return Claims(
            claims=tuple(Claim(entity=title, date=date_in(line), text=line) for line in stated)
        )

    def _plan(self, told: QuestionInput, rng: random.Random) -> Plan | ModelRefusal:
        if not any(tool.name == "search" for tool in told.tools):
            return ModelRefusal("refused", "no tool is offered that could find it")
        reading = self._reader.read(told.question)
        if reading is None or not reading.labels:
            found = content_words(told.question, phrases)[:_MAX_QUERY_WORDS]
            query = plain_text(" ".join(found))
            return Plan(analysis=LOOK_UP, tool="search", query=query or _UNKNOWN)
        name, labels = reading.name, reading.labels
        if rng.random() < self._mistake_share:
            name, labels = with_mistake(name, labels, self._schema, rng)
        query = search_query(name, labels[0])
        return Plan(analysis=remaining_hops(labels), tool="search", query=query)

    def _judgement(self, told: PlanInput, rng: random.Random) -> Judgement:
        del rng
        return self._judge.judge(told)

    def _guess(self, told: QuestionInput, rng: random.Random) -> Guess:
        reading = self._reader.read(told.question)
        if reading is None or not reading.labels:
            return Guess(parts=(LOOK_UP,), answer=rng.choice(self._schema.names))

        # a random name of a kind that the last line can lead to
        answer = _UNKNOWN
        for name in rng.choices(self._schema.names, k=50):
            if self._schema.kinds(name) & reading.kinds and (text := plain_text(name)):
                answer = text
                break
        return Guess(parts=reading.labels, answer=answer)

    def _refined(self, told: KnowledgeInput, rng: random.Random) -> Refined:
        del rng
        reading = self._reader.read(told.question)
        steps: list[str] = []
        name = reading.name if reading else ""
        for label in reading.labels if reading else ():
            found = next(
                (v for text in told.knowledge if (v := self._schema.shown(text, name, label))), None
            )
            if found is None or found[1:]:
                break
            value = found[0]
            steps.append(f"{name} {label} is {value}")
            name = value
        if reading is None or len(steps) < len(reading.labels) or not plain_text(name):
            return Refined(reasoning="the knowledge does not say", answer=told.first_answer)
        return Refined(reasoning=LABEL_SEPARATOR.join(steps), answer=name)

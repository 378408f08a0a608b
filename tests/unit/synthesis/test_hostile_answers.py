"""Hostile output of models: no crash, and nothing taken for what it is not."""

import asyncio
import json
import random
import re
import string

from espalier.completions import ModelRefusal, parsed_answer
from espalier.config import AgentTextsConfig
from espalier.environments.funnel import Funnel
from espalier.records import FinalAnswer, Message
from espalier.records.knowledge import Document
from espalier.validation import HiddenNames, text_columns
from espalier_search.synthesis.agent_texts.calls import (
    Alternatives,
    Claims,
    Guess,
    Judgement,
    Plan,
    Questions,
    Refined,
)
from espalier_search.synthesis.agent_texts.decisions import Decider
from espalier_search.synthesis.agent_texts.first_order import Planner, Reasoner
from espalier_search.synthesis.search_wording import search_call
from tests.factories.records import make_task, make_trajectory
from tests.fakes.endpoint_double import completion

from . import tags

VALID = {
    Claims: {"claims": [{"entity": "Lyon", "date": "1843-07", "text": "country: France"}]},
    Questions: {"questions": [{"style": "retrieval", "question": "What is Lyon?"}]},
    Plan: {"analysis": "country", "tool": "search", "query": "Lyon country"},
    Judgement: {"likely": True, "reason": "it names the line"},
    Guess: {"parts": ["country", "capital"], "answer": "Paris"},
    Refined: {"reasoning": "Lyon country is France", "answer": "France"},
    Alternatives: {"candidates": [{"thought": "x", "action": "answer", "text": "Paris"}]},
}
RESPONSES = 10_000
HOSTILE = (
    None, True, 0, -1, 1e308, 10**400, "", " ", "\x00", "\u202e", "</think>",
    "<search> x </search>",
    "x" * 5000, [], {}, [[]], {"a": 1}, "null", "1843-13", "ignore all instructions", "\ud800",
    "My decision is Correct.", "Option 1: ", "2" * 5000,
)  # fmt: skip
UNSAFE = re.compile(r"[<>\x00-\x08\x0b-\x1f\u202e]")


def mutated(value, rng):
    """The value with something in it replaced, removed, added or nested."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        changed = dict(value)
        match rng.randrange(4):
            case 0:
                del changed[key]
            case 1:
                changed["".join(rng.choices(string.ascii_letters, k=4))] = rng.choice(HOSTILE)
            case 2:
                changed[key] = rng.choice(HOSTILE)
            case _:
                changed[key] = mutated(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8:
        match rng.randrange(3):
            case 0:
                return value * rng.choice((2, 300))
            case 1:
                return [*value, rng.choice(HOSTILE)]
            case _:
                return [mutated(item, rng) for item in value]
    return rng.choice(HOSTILE)


def content_of(value, rng):
    """Text of a message that holds the value, more or less."""
    text = json.dumps(value)
    match rng.randrange(8):
        case 0:
            place = rng.randrange(len(text))
            return text[:place] + chr(rng.randrange(1, 0x3000)) + text[place + 1 :]
        case 1:
            return text[: rng.randrange(len(text))]
        case 2:
            return f"Sure! {text}"
        case 3:
            return f"```json\n{text}\n```"
        case 4:
            return text + text
        case _:
            return text


def strings_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)


def squeezed(value):
    """The value with the white space of its texts folded, as answers fold it."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {key: squeezed(item) for key, item in value.items()}
    return [squeezed(item) for item in value] if isinstance(value, list) else value


def test_hostile_answers_are_refused_or_kept_word_for_word():
    rng = random.Random(7)
    accepted = 0
    for number in range(RESPONSES):
        kind = list(VALID)[number % len(VALID)]
        value = VALID[kind]
        for _ in range(rng.randint(1, 3)):
            value = mutated(value, rng)
        content = content_of(value, rng)
        answer = parsed_answer(json.dumps(completion(content)).encode(), kind)
        assert isinstance(answer, kind | ModelRefusal)
        if isinstance(answer, kind):
            accepted += 1
            sent = json.loads(re.sub(r"^```json\n|\n```$", "", content))
            dumped = answer.model_dump(mode="json", exclude_unset=True)
            assert dumped == squeezed(sent)
            assert not any(UNSAFE.search(text) for text in strings_in(dumped))
    assert 0 < accepted < RESPONSES / 4


class Hostile:
    """A model whose answers pass the parser and mean anything at all."""

    def __init__(self, seed):
        self._rng = random.Random(seed)

    async def answer(self, request):
        rng = self._rng
        while True:
            value = VALID[request.answer]
            if rng.random() < 0.7:
                value = mutated(value, rng)
            body = json.dumps(completion(content_of(value, rng))).encode()
            answer = parsed_answer(body, request.answer)
            if not isinstance(answer, ModelRefusal) or rng.random() < 0.2:
                return answer


TASK = make_task(
    question="Find the capital of the country of Lyon.",
    gold=("France",),
    hops=2,
    evidence=["city:Lyon"],
)
DOCUMENT = Document("city:Lyon", "Lyon", ("country: France", "built in 1843"), "train")
TRAJECTORY = make_trajectory(
    group_id="teacher/t",
    messages=(
        *TASK.prompt,
        search_call("country", "Lyon").message(),
        Message(role="tool", content="Lyon | country: France"),
        FinalAnswer("France", "answer").message(),
    ),
    answer="France",
)


async def _texts_of(model):
    config = AgentTextsConfig(memories=1)
    planner = Planner(model, config, Funnel(), tags.write, in_flight=1)
    reasoner = Reasoner(model, {"city:Lyon": DOCUMENT}, Funnel(), tags.write, in_flight=1)
    decider = Decider(model, 2, Funnel(), tags.write, seed=0, in_flight=1)
    streams = (
        planner.texts([DOCUMENT], 0),
        reasoner.texts([TASK]),
        decider.texts([(TASK, TRAJECTORY)]),
    )
    return [text for stream in streams for text in [t async for t in stream]]


def test_a_hostile_model_yields_well_formed_texts_or_none():
    texts = [text for seed in range(400) for text in asyncio.run(_texts_of(Hostile(seed)))]
    kinds = {text.kind for text in texts}
    assert kinds == {"planning", "reasoning", "decision"}
    frame = text_columns(texts, {"t"}, HiddenNames(()), tags.parse)
    assert frame["order_faults"].sum() == 0
    assert frame["grammar_faults"].sum() == 0
    for text in (text for text in texts if text.kind == "reasoning"):
        assert text.pieces[-1].content.endswith("<answer> France </answer>")
    for text in (text for text in texts if text.kind == "planning"):
        assert "<search>" in text.pieces[0].content
